// The vectors of vec_portable.h (read there what each operation means) on AVX2, FMA and F16C: pairs of registers.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define ONEBIT_INLINE __attribute__((always_inline)) static inline

namespace onebit::cpu {
namespace {

// 12 accumulators, a pair of b and one broadcast of a: 15 of 16 registers.
constexpr int kGemmRows = 6, kGemmVecs = 1;

struct Vec {
  __m256 lo, hi;
};

ONEBIT_INLINE Vec set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
ONEBIT_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
ONEBIT_INLINE void store(Vec x, float* p) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
ONEBIT_INLINE Vec load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
ONEBIT_INLINE void store_f16(Vec x, uint16_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}
ONEBIT_INLINE __m256 widen_bf16(const uint16_t* p) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
ONEBIT_INLINE Vec load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }

// The first n lanes go through a buffer: tails are rare, and masked moves of 16-bit elements don't exist.
ONEBIT_INLINE Vec load(const float* p, int n) {
  if (n == 16) return load(p);
  float all[16] = {};
  memcpy(all, p, static_cast<size_t>(n) * 4);
  return load(all);
}
ONEBIT_INLINE void store(Vec x, float* p, int n) {
  if (n == 16) return store(x, p);
  float all[16];
  store(x, all);
  memcpy(p, all, static_cast<size_t>(n) * 4);
}
ONEBIT_INLINE Vec load_f16(const uint16_t* p, int n) {
  if (n == 16) return load_f16(p);
  uint16_t all[16] = {};
  memcpy(all, p, static_cast<size_t>(n) * 2);
  return load_f16(all);
}
ONEBIT_INLINE void store_f16(Vec x, uint16_t* p, int n) {
  if (n == 16) return store_f16(x, p);
  uint16_t all[16];
  store_f16(x, all);
  memcpy(p, all, static_cast<size_t>(n) * 2);
}
ONEBIT_INLINE Vec load_bf16(const uint16_t* p, int n) {
  if (n == 16) return load_bf16(p);
  uint16_t all[16] = {};
  memcpy(all, p, static_cast<size_t>(n) * 2);
  return load_bf16(all);
}
ONEBIT_INLINE Vec load_u8(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
ONEBIT_INLINE Vec load_s8(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}

ONEBIT_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
ONEBIT_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
ONEBIT_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
ONEBIT_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
ONEBIT_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
ONEBIT_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
ONEBIT_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
ONEBIT_INLINE Vec abs(Vec x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
ONEBIT_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
ONEBIT_INLINE uint32_t bits_greater(Vec a, Vec b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
  return static_cast<uint32_t>(lo | hi << 8);
}
ONEBIT_INLINE Vec round_even(Vec x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, kMode), _mm256_round_ps(x.hi, kMode)};
}
ONEBIT_INLINE Vec truncate(Vec x) {
  constexpr int kMode = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, kMode), _mm256_round_ps(x.hi, kMode)};
}
ONEBIT_INLINE __m256 exponent_of(__m256 x) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
ONEBIT_INLINE Vec power_of_two(Vec x) { return {exponent_of(x.lo), exponent_of(x.hi)}; }
ONEBIT_INLINE float sum(Vec x) {
  const __m256 eight = _mm256_add_ps(x.lo, x.hi);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
ONEBIT_INLINE float largest(Vec x) {
  const __m256 eight = _mm256_max_ps(x.lo, x.hi);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

template <int S>
ONEBIT_INLINE __m256 butterfly8(__m256 x) {
  constexpr int kUpper = S == 1 ? 0xAA : S == 2 ? 0xCC : 0xF0;
  __m256 p = x;
  if constexpr (S == 1) p = _mm256_permute_ps(x, 0xB1);
  if constexpr (S == 2) p = _mm256_permute_ps(x, 0x4E);
  if constexpr (S == 4) p = _mm256_permute2f128_ps(x, x, 1);
  return _mm256_blend_ps(_mm256_add_ps(p, x), _mm256_sub_ps(p, x), kUpper);
}
template <int S>
ONEBIT_INLINE Vec butterfly(Vec x) {
  if constexpr (S == 8) return {_mm256_add_ps(x.lo, x.hi), _mm256_sub_ps(x.lo, x.hi)};
  if constexpr (S != 8) return {butterfly8<S>(x.lo), butterfly8<S>(x.hi)};
}
ONEBIT_INLINE void store_s8(Vec x, int8_t* p) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

ONEBIT_INLINE void transpose8(__m256* x) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int j = 0; j < 4; ++j) {
    x[j] = _mm256_permute2f128_ps(quads[j], quads[4 + j], 0x20);
    x[4 + j] = _mm256_permute2f128_ps(quads[j], quads[4 + j], 0x31);
  }
}
ONEBIT_INLINE void transpose(Vec* x) {
  __m256 part[8];
  for (int i = 0; i < 8; ++i) part[i] = x[i].lo;  // rows 0..7, columns 0..7
  transpose8(part);
  for (int i = 0; i < 8; ++i) x[i].lo = part[i];
  for (int i = 0; i < 8; ++i) part[i] = x[8 + i].hi;
  transpose8(part);
  for (int i = 0; i < 8; ++i) x[8 + i].hi = part[i];
  __m256 other[8];
  for (int i = 0; i < 8; ++i) {
    part[i] = x[i].hi;
    other[i] = x[8 + i].lo;
  }
  transpose8(part);
  transpose8(other);
  for (int i = 0; i < 8; ++i) {
    x[8 + i].lo = part[i];
    x[i].hi = other[i];
  }
}

struct Bytes {
  __m256i lo, hi;
};

ONEBIT_INLINE Bytes load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
ONEBIT_INLINE void store_bytes(Bytes x, uint8_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.hi);
}
template <int Shift>
ONEBIT_INLINE __m256i bits32(__m256i x, uint8_t mask) {
  if constexpr (Shift > 0) x = _mm256_srli_epi16(x, Shift);
  if constexpr (Shift < 0) x = _mm256_slli_epi16(x, -Shift);
  return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(mask)));
}
template <int Shift>
ONEBIT_INLINE Bytes bits(Bytes x, uint8_t mask) {
  return {bits32<Shift>(x.lo, mask), bits32<Shift>(x.hi, mask)};
}
ONEBIT_INLINE Bytes operator|(Bytes a, Bytes b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
ONEBIT_INLINE Bytes plus(Bytes x, uint8_t n) {
  const __m256i all = _mm256_set1_epi8(static_cast<char>(n));
  return {_mm256_add_epi8(x.lo, all), _mm256_add_epi8(x.hi, all)};
}
ONEBIT_INLINE Bytes lookup(const uint8_t* table, Bytes x) {
  const __m256i row = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(row, x.lo), _mm256_shuffle_epi8(row, x.hi)};
}
ONEBIT_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace onebit::cpu
