// The walk over strips and tiles for 256-bit vectors, shared by matmul_avx2.cpp and matmul_avxvnni.cpp: half a strip (8
// rows) fills a register, and four tokens at a time share the weights.
//
// A Form says how blocks are read and multiplied: kBytes, kGroups, kMin; read(block, half, codes, scale, min), where
// `half` selects 8 of the 16 rows; and dot(codes, a, eighth), the exact sums of a group with the activation codes at a,
// whose sum is -eighth / 8.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "backend/cpu/layout.h"

namespace onebit::cpu {
namespace {

#define ONEBIT_INLINE __attribute__((always_inline)) static inline

constexpr int kAhead = 4096;  // bytes

ONEBIT_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
ONEBIT_INLINE __m256 halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ONEBIT_INLINE __m256 floats(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }

/// y [T, 16] (8 of the 16 lanes) (+)= half a strip times tokens t0 .. t0 + T - 1 of a tile of n_tok tokens.
template <class Form, int T>
void half_tile(const uint8_t* strip, int half, const uint8_t* act, int n_tok, int t0, int64_t n_block,
               const TileOut& out) {
  constexpr int kGroups = Form::kGroups, kPart = 8 / kGroups;
  __m256 total[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) total[t] = out.add ? _mm256_loadu_ps(out.y + t * out.row) : _mm256_setzero_ps();
  for (int64_t b = 0; b < n_block; ++b, strip += Form::kBytes, act += kActBlockBytes * n_tok) {
    __m256i codes[8];
    __m256 scale[kGroups], min[kGroups];
    Form::read(strip, half, codes, scale, min);
    for (int i = 0; i < Form::kBytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(strip) + kAhead + i, _MM_HINT_T0);
    const auto* scales = reinterpret_cast<const float*>(act + 32 * n_tok) + t0;
    const auto* starts = reinterpret_cast<const int32_t*>(act + 36 * n_tok) + t0;
    const auto* half_sums = reinterpret_cast<const int16_t*>(act + 40 * n_tok) + 2 * t0;
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const int8_t* a = reinterpret_cast<const int8_t*>(act) + 32 * (t0 + t);
      const __m256 by = _mm256_broadcast_ss(scales + t);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        const int32_t eighth = kGroups == 1 ? starts[t] : -8 * half_sums[2 * t + g];  // -8 * (sum of the codes)
        const __m256i products = Form::dot(codes + kPart * g, a + 4 * kPart * g, eighth);
        total[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), _mm256_mul_ps(scale[g], by), total[t]);
        if constexpr (Form::kMin) {
          const __m256 sums = _mm256_cvtepi32_ps(_mm256_set1_epi32(eighth));
          total[t] = _mm256_fmadd_ps(sums, _mm256_mul_ps(min[g], by), total[t]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) _mm256_storeu_ps(out.y + t * out.row, total[t]);
}

/// Both halves block range by block range, so that the second finds the weights in L1.
template <class Form, int T>
void tile(const uint8_t* strip, const uint8_t* act, int n_tok, int t0, int64_t n_block, const TileOut& out) {
  constexpr int64_t kStep = 16;
  for (int64_t b = 0; b < n_block; b += kStep) {
    const int64_t n = n_block - b < kStep ? n_block - b : kStep;
    const uint8_t* part = strip + b * Form::kBytes;
    const uint8_t* columns = act + b * kActBlockBytes * n_tok;
    const bool add = out.add || b > 0;
    half_tile<Form, T>(part, 0, columns, n_tok, t0, n, {out.y, out.row, add});
    half_tile<Form, T>(part, 1, columns, n_tok, t0, n, {out.y + 8, out.row, add});
  }
}

template <class Form>
void tiles(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  const auto from = [&](int t) { return TileOut{out.y + t * out.row, out.row, out.add}; };
  int t = 0;
  for (; t + 4 <= n_tok; t += 4) tile<Form, 4>(strip, act, n_tok, t, n_block, from(t));
  if (t + 2 <= n_tok) {
    tile<Form, 2>(strip, act, n_tok, t, n_block, from(t));
    t += 2;
  }
  if (t < n_tok) tile<Form, 1>(strip, act, n_tok, t, n_block, from(t));
}

}  // namespace
}  // namespace onebit::cpu
