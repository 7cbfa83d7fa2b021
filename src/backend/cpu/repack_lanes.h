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
