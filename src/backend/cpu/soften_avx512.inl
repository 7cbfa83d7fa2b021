// The softmax of attention on AVX-512, four queries at a time; included by files of that instruction set.
#pragma once

#include <immintrin.h>

#include <initializer_list>

#include "backend/cpu/kernels.h"

namespace onebit::cpu {
namespace {

/// Of four rows, combined by `f`: row i in lane i of every quarter.
template <class F>
__m512 reduce_four(const __m512* rows, F f) {
  const auto pairs = [f](__m512 a, __m512 b) { return f(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
  const __m512d ab = _mm512_castps_pd(pairs(rows[0], rows[1])), cd = _mm512_castps_pd(pairs(rows[2], rows[3]));
  __m512 x = f(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  x = f(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  return f(x, _mm512_shuffle_f32x4(x, x, 0xb1));
}

/// e^x for x <= 0 within 4 ulp: 2^n times the polynomial of the Cephes library's exp2f.
__m512 exp_below_0(__m512 x) {
  const auto set = [](float c) { return _mm512_set1_ps(c); };
  const __m512 t = _mm512_max_ps(_mm512_mul_ps(x, set(1.44269504088896341f)), set(-150.0f));
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(t, n);
  __m512 p = set(1.535336188319500e-4f);
  for (const float c : {1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f, 2.402264791363012e-1f,
                        6.931472028550421e-1f, 1.0f}) {
    p = _mm512_fmadd_ps(p, r, set(c));
  }
  return _mm512_scalef_ps(p, n);
}

/// Queries first to first + 3, which share what is done once for each. Their exponentials go to put(query, column, 32
/// numbers in two vectors).
template <class Put>
void soften_four(const Softmax& queries, int64_t first, Put put) {
  const __m512 nothing = _mm512_set1_ps(-__builtin_inff());
  const float* scores = queries.scores + first * 64;
  const uint64_t* seen = queries.seen + first;
  const auto some = [seen](int i, int j) { return static_cast<__mmask16>(seen[i] >> (16 * j)); };
  __m512 x[4][4], row[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) x[i][j] = _mm512_mask_loadu_ps(nothing, some(i, j), scores + 64 * i + 16 * j);
    row[i] = _mm512_max_ps(_mm512_max_ps(x[i][0], x[i][1]), _mm512_max_ps(x[i][2], x[i][3]));
  }
  const __m512 before = _mm512_broadcast_f32x4(_mm_loadu_ps(queries.peak + first));
  const __m512 here = reduce_four(row, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
  const __m512 peak = _mm512_max_ps(here, before);
  const __mmask16 kept = _mm512_cmp_ps_mask(before, peak, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(before, nothing, _CMP_EQ_OQ);
  const __m512 fade = _mm512_mask_mov_ps(exp_below_0(_mm512_sub_ps(before, peak)), kept, _mm512_set1_ps(1.0f));
  const __m512 peaks[4] = {_mm512_permute_ps(peak, 0x00), _mm512_permute_ps(peak, 0x55), _mm512_permute_ps(peak, 0xaa),
                           _mm512_permute_ps(peak, 0xff)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      x[i][j] = _mm512_maskz_mov_ps(some(i, j), exp_below_0(_mm512_sub_ps(x[i][j], peaks[i])));
    row[i] = _mm512_add_ps(_mm512_add_ps(x[i][0], x[i][1]), _mm512_add_ps(x[i][2], x[i][3]));
    put(first + i, 0, x[i][0], x[i][1]);
    put(first + i, 32, x[i][2], x[i][3]);
  }
  const __m128 sum = _mm512_castps512_ps128(reduce_four(row, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); }));
  const __m128 factor = _mm512_castps512_ps128(fade);
  _mm_storeu_ps(queries.sum + first, _mm_fmadd_ps(_mm_loadu_ps(queries.sum + first), factor, sum));
  _mm_storeu_ps(queries.fade + first, factor);
  _mm_storeu_ps(queries.peak + first, _mm512_castps512_ps128(peak));
}

}  // namespace
}  // namespace onebit::cpu
