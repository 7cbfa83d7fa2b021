// Vectors of 16 floats and of 64 bytes in plain C++, and the operations that the shared kernel sources (*.inl) are
// written in. vec_avx2.h and vec_avx512.h offer the same names. Everything lies in the anonymous namespace: files of
// different instruction sets must not share a symbol, or the linker could keep the wrong one.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

#define ONEBIT_INLINE __attribute__((always_inline)) static inline

namespace onebit::cpu {
namespace {

// Tile of the gemm kernel: rows, vectors across, that fit the registers.
constexpr int kGemmRows = 2, kGemmVecs = 1;

struct Vec {
  float v[16];
};

/// Applies f to every lane.
template <class F>
ONEBIT_INLINE Vec lanes(F f) {
  Vec y;
  for (int i = 0; i < 16; ++i) y.v[i] = f(i);
  return y;
}

ONEBIT_INLINE Vec set(float x) {
  return lanes([x](int) { return x; });
}
// Loads and stores of the first n lanes, n = 1..16; loads fill the others with zeros.
ONEBIT_INLINE Vec load(const float* p, int n = 16) {
  return lanes([=](int i) { return i < n ? p[i] : 0.0f; });
}
ONEBIT_INLINE void store(const Vec& x, float* p, int n = 16) {
  for (int i = 0; i < n; ++i) p[i] = x.v[i];
}
ONEBIT_INLINE Vec load_f16(const uint16_t* p, int n = 16) {
  return lanes([=](int i) { return i < n ? f16_to_f32(p[i]) : 0.0f; });
}
ONEBIT_INLINE void store_f16(const Vec& x, uint16_t* p, int n = 16) {
  for (int i = 0; i < n; ++i) p[i] = f32_to_f16(x.v[i]);
}
ONEBIT_INLINE Vec load_bf16(const uint16_t* p, int n = 16) {
  return lanes([=](int i) { return i < n ? bf16_to_f32(p[i]) : 0.0f; });
}
ONEBIT_INLINE Vec load_u8(const uint8_t* p) {
  return lanes([=](int i) { return static_cast<float>(p[i]); });
}
ONEBIT_INLINE Vec load_s8(const uint8_t* p) {
  return lanes([=](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}

ONEBIT_INLINE Vec operator+(const Vec& a, const Vec& b) {
  return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
ONEBIT_INLINE Vec operator-(const Vec& a, const Vec& b) {
  return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
ONEBIT_INLINE Vec operator*(const Vec& a, const Vec& b) {
  return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
ONEBIT_INLINE Vec operator/(const Vec& a, const Vec& b) {
  return lanes([&](int i) { return a.v[i] / b.v[i]; });
}
/// a * b + c; fused where the machine can.
ONEBIT_INLINE Vec fma(const Vec& a, const Vec& b, const Vec& c) { return a * b + c; }
// The second operand is the result when one of them is NaN.
ONEBIT_INLINE Vec min(const Vec& a, const Vec& b) {
  return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
ONEBIT_INLINE Vec max(const Vec& a, const Vec& b) {
  return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
ONEBIT_INLINE Vec abs(const Vec& x) {
  return lanes([&](int i) { return __builtin_fabsf(x.v[i]); });
}
/// a < b ? x : y
ONEBIT_INLINE Vec where_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
  return lanes([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
/// Bit i is set where lane i of a exceeds that of b.
ONEBIT_INLINE uint32_t bits_greater(const Vec& a, const Vec& b) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(a.v[i] > b.v[i]) << i;
  return bits;
}
/// Nearest integer, even on ties.
ONEBIT_INLINE Vec round_even(const Vec& x) {
  return lanes([&](int i) { return rintf(x.v[i]); });
}
ONEBIT_INLINE Vec truncate(const Vec& x) {
  return lanes([&](int i) { return truncf(x.v[i]); });
}
/// 2^x for whole x in -126..128.
ONEBIT_INLINE Vec power_of_two(const Vec& x) {
  return lanes([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(x.v[i]) + 127) << 23;
    float y;
    memcpy(&y, &bits, 4);
    return y;
  });
}
ONEBIT_INLINE float sum(const Vec& x) {
  float total = 0;
  for (int i = 0; i < 16; ++i) total += x.v[i];
  return total;
}
ONEBIT_INLINE float largest(const Vec& x) {
  float best = x.v[0];
  for (int i = 1; i < 16; ++i) best = x.v[i] > best ? x.v[i] : best;
  return best;
}
/// Lane i of the result: x[i ^ S] + x[i] where bit S of i is clear, x[i ^ S] - x[i] where it is set. S: 1, 2, 4, 8.
template <int S>
ONEBIT_INLINE Vec butterfly(const Vec& x) {
  return lanes([&](int i) { return i & S ? x.v[i ^ S] - x.v[i] : x.v[i ^ S] + x.v[i]; });
}
/// Whole numbers -128..127 to bytes.
ONEBIT_INLINE void store_s8(const Vec& x, int8_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(x.v[i]);
}

/// Lane j of vector i becomes lane i of vector j.
ONEBIT_INLINE void transpose(Vec* x) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float swap = x[i].v[j];
      x[i].v[j] = x[j].v[i];
      x[j].v[i] = swap;
    }
  }
}

struct Bytes {
  uint8_t v[64];
};

ONEBIT_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes y;
  memcpy(y.v, p, 64);
  return y;
}
ONEBIT_INLINE void store_bytes(const Bytes& x, uint8_t* p) { memcpy(p, x.v, 64); }
/// (x >> Shift) & mask per byte; a negative Shift moves left.
template <int Shift>
ONEBIT_INLINE Bytes bits(const Bytes& x, uint8_t mask) {
  Bytes y;
  for (int i = 0; i < 64; ++i) {
    y.v[i] = static_cast<uint8_t>((Shift >= 0 ? x.v[i] >> (Shift & 7) : x.v[i] << (-Shift & 7)) & mask);
  }
  return y;
}
ONEBIT_INLINE Bytes operator|(const Bytes& a, const Bytes& b) {
  Bytes y;
  for (int i = 0; i < 64; ++i) y.v[i] = a.v[i] | b.v[i];
  return y;
}
ONEBIT_INLINE Bytes plus(const Bytes& x, uint8_t n) {
  Bytes y;
  for (int i = 0; i < 64; ++i) y.v[i] = static_cast<uint8_t>(x.v[i] + n);
  return y;
}
/// table[x], x < 16.
ONEBIT_INLINE Bytes lookup(const uint8_t* table, const Bytes& x) {
  Bytes y;
  for (int i = 0; i < 64; ++i) y.v[i] = table[x.v[i]];
  return y;
}
ONEBIT_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace onebit::cpu
