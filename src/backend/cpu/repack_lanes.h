// 16 bytes at a time, in the compiler's own vectors: every instruction set has these, so that repacking needs no table.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/layout.h"

namespace onebit::cpu {

using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Words8 = uint16_t __attribute__((vector_size(16)));
using Words4 = uint32_t __attribute__((vector_size(16)));
using Words2 = uint64_t __attribute__((vector_size(16)));

template <class Vector>
Vector load16(const uint8_t* from) {
  Vector v;
  std::memcpy(&v, from, 16);
  return v;
}

template <class Vector>
void store16(Vector v, uint8_t* to) {
  std::memcpy(to, &v, 16);
}

/// The lower and the upper halves of two vectors, element by element in turns.
inline Bytes16 zip_low(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Bytes16 zip_high(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
inline Words8 zip_low(Words8 a, Words8 b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline Words8 zip_high(Words8 a, Words8 b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
inline Words4 zip_low(Words4 a, Words4 b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline Words4 zip_high(Words4 a, Words4 b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
inline Words2 zip_low(Words2 a, Words2 b) { return __builtin_shufflevector(a, b, 0, 2); }
inline Words2 zip_high(Words2 a, Words2 b) { return __builtin_shufflevector(a, b, 1, 3); }

/// Four rows of four words -> their four columns.
inline void transpose(Words4 (&m)[4]) {
  const Words2 a = reinterpret_cast<Words2>(zip_low(m[0], m[1])), b = reinterpret_cast<Words2>(zip_high(m[0], m[1]));
  const Words2 c = reinterpret_cast<Words2>(zip_low(m[2], m[3])), d = reinterpret_cast<Words2>(zip_high(m[2], m[3]));
  m[0] = reinterpret_cast<Words4>(zip_low(a, c));
  m[1] = reinterpret_cast<Words4>(zip_high(a, c));
  m[2] = reinterpret_cast<Words4>(zip_low(b, d));
  m[3] = reinterpret_cast<Words4>(zip_high(b, d));
}

/// Eight rows of eight words -> their eight columns.
inline void transpose(Words8 (&m)[8]) {
  Words4 low[4], high[4];  // columns 0..3 and 4..7; an element holds two rows
  for (int i = 0; i < 4; ++i) {
    low[i] = reinterpret_cast<Words4>(zip_low(m[2 * i], m[2 * i + 1]));
    high[i] = reinterpret_cast<Words4>(zip_high(m[2 * i], m[2 * i + 1]));
  }
  transpose(low);
  transpose(high);
  for (int i = 0; i < 4; ++i) {
    m[i] = reinterpret_cast<Words8>(low[i]);
    m[4 + i] = reinterpret_cast<Words8>(high[i]);
  }
}

/// 16 rows of 8 bytes, `stride` bytes apart (16 can be read) -> 8 columns of 16.
inline void transpose_bytes(const uint8_t* rows, int64_t stride, Bytes16 (&columns)[8]) {
  Bytes16 a[8], b[8];
  for (int i = 0; i < 8; ++i) {  // all columns of rows i, i + 8
    a[i] = zip_low(load16<Bytes16>(rows + i * stride), load16<Bytes16>(rows + (i + 8) * stride));
  }
  for (int i = 0; i < 4; ++i) {  // four columns of rows i, i + 4, i + 8, i + 12
    b[i] = zip_low(a[i], a[i + 4]);
    b[4 + i] = zip_high(a[i], a[i + 4]);
  }
  for (int i = 0; i < 8; i += 4) {  // two columns of every second row
    for (const int r : {0, 1}) {
      a[i + r] = zip_low(b[i + r], b[i + r + 2]);
      a[i + r + 2] = zip_high(b[i + r], b[i + r + 2]);
    }
  }
  for (int i = 0; i < 8; i += 2) {
    columns[i] = zip_low(a[i], a[i + 1]);
    columns[i + 1] = zip_high(a[i], a[i + 1]);
  }
}

/// 16 rows of 16 bytes, `stride` bytes apart -> 4 vectors of a plane: bytes 4r..4r+3 of vector p are bytes 4p..4p+3 of
/// row r. `flip` is XORed into each four of them.
inline void interleave(const uint8_t* rows, int64_t stride, uint32_t flip, uint8_t* plane) {
  for (int quarter = 0; quarter < 4; ++quarter, rows += 4 * stride, plane += 16) {
    Words4 m[4];
    for (int r = 0; r < 4; ++r) m[r] = load16<Words4>(rows + r * stride) ^ flip;
    transpose(m);
    for (int p = 0; p < 4; ++p) store16(m[p], plane + 64 * p);
  }
}

}  // namespace onebit::cpu
