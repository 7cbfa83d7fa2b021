// The vectors of vec_portable.h (read there what each operation means) on AVX-512 F, BW and VL.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define ONEBIT_INLINE __attribute__((always_inline)) static inline

namespace onebit::cpu {
namespace {

// 24 accumulators, 4 vectors of b and one broadcast of a: 29 of 32 registers.
constexpr int kGemmRows = 6, kGemmVecs = 4;

struct Vec {
  __m512 v;
};

ONEBIT_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

ONEBIT_INLINE Vec set(float x) { return {_mm512_set1_ps(x)}; }
ONEBIT_INLINE Vec load(const float* p, int n = 16) {
  return {n == 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(first(n), p)};
}
ONEBIT_INLINE void store(Vec x, float* p, int n = 16) {
  if (n == 16) {
    _mm512_storeu_ps(p, x.v);
  } else {
    _mm512_mask_storeu_ps(p, first(n), x.v);
  }
}
ONEBIT_INLINE __m256i load_halves(const uint16_t* p, int n) {
  return n == 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)) : _mm256_maskz_loadu_epi16(first(n), p);
}
ONEBIT_INLINE Vec load_f16(const uint16_t* p, int n = 16) { return {_mm512_cvtph_ps(load_halves(p, n))}; }
ONEBIT_INLINE void store_f16(Vec x, uint16_t* p, int n = 16) {
  _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ONEBIT_INLINE Vec load_bf16(const uint16_t* p, int n = 16) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(p, n)), 16))};
}
ONEBIT_INLINE Vec load_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
ONEBIT_INLINE Vec load_s8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

ONEBIT_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
ONEBIT_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
ONEBIT_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
ONEBIT_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
ONEBIT_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
ONEBIT_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
ONEBIT_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
ONEBIT_INLINE Vec abs(Vec x) { return {_mm512_abs_ps(x.v)}; }
ONEBIT_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
ONEBIT_INLINE uint32_t bits_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
ONEBIT_INLINE Vec round_even(Vec x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
ONEBIT_INLINE Vec truncate(Vec x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}; }
ONEBIT_INLINE Vec power_of_two(Vec x) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(x.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
ONEBIT_INLINE float sum(Vec x) { return _mm512_reduce_add_ps(x.v); }
ONEBIT_INLINE float largest(Vec x) { return _mm512_reduce_max_ps(x.v); }

/// x[i ^ S]
template <int S>
ONEBIT_INLINE __m512 partner(__m512 x) {
  if constexpr (S == 1) return _mm512_permute_ps(x, 0xB1);
  if constexpr (S == 2) return _mm512_permute_ps(x, 0x4E);
  if constexpr (S == 4) return _mm512_shuffle_f32x4(x, x, 0xB1);
  if constexpr (S == 8) return _mm512_shuffle_f32x4(x, x, 0x4E);
}
template <int S>
ONEBIT_INLINE Vec butterfly(Vec x) {
  constexpr __mmask16 kUpper = S == 1 ? 0xAAAA : S == 2 ? 0xCCCC : S == 4 ? 0xF0F0 : 0xFF00;
  const __m512 p = partner<S>(x.v);
  return {_mm512_mask_sub_ps(_mm512_add_ps(p, x.v), kUpper, p, x.v)};
}
ONEBIT_INLINE void store_s8(Vec x, int8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

ONEBIT_INLINE void transpose(Vec* x) {
  __m512 pairs[16], quads[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    pairs[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {  // quads[i + j], lane group g: columns 4g + j of rows i..i+3
    quads[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0x88);  // groups 0, 2 of rows 0..3, then 4..7
    const __m512 b = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0x88);
    const __m512 c = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0xDD);  // groups 1, 3
    const __m512 d = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0xDD);
    x[j].v = _mm512_shuffle_f32x4(a, b, 0x88);
    x[8 + j].v = _mm512_shuffle_f32x4(a, b, 0xDD);
    x[4 + j].v = _mm512_shuffle_f32x4(c, d, 0x88);
    x[12 + j].v = _mm512_shuffle_f32x4(c, d, 0xDD);
  }
}

struct Bytes {
  __m512i v;
};

ONEBIT_INLINE Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
ONEBIT_INLINE void store_bytes(Bytes x, uint8_t* p) { _mm512_storeu_si512(p, x.v); }
template <int Shift>
ONEBIT_INLINE Bytes bits(Bytes x, uint8_t mask) {
  __m512i y = x.v;
  if constexpr (Shift > 0) y = _mm512_srli_epi16(y, Shift);
  if constexpr (Shift < 0) y = _mm512_slli_epi16(y, -Shift);
  return {_mm512_and_si512(y, _mm512_set1_epi8(static_cast<char>(mask)))};
}
ONEBIT_INLINE Bytes operator|(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
ONEBIT_INLINE Bytes plus(Bytes x, uint8_t n) { return {_mm512_add_epi8(x.v, _mm512_set1_epi8(static_cast<char>(n)))}; }
ONEBIT_INLINE Bytes lookup(const uint8_t* table, Bytes x) {
  const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), x.v)};
}
ONEBIT_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace onebit::cpu
