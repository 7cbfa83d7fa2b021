#include "gguf/search_lanes.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ONEBIT_EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ONEBIT_EACH_ISA
#endif
#define ONEBIT_INLINE __attribute__((always_inline)) static inline

namespace onebit::lanes {
namespace {

/// As in blocks_search.cpp: halves to even, NaN gives low.
ONEBIT_INLINE void nearest(const Lanes& value, const Lanes& low, const Lanes& high, Lanes& q) {
  constexpr float kShift = 0x1.8p23f;
  q = value > low ? value : low;
  q = q < high ? q : high;
  q = (q + kShift) - kShift;
}

/// Eight interleaved partial sums of each lane.
struct Sum {
  Lanes a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {};
};
ONEBIT_INLINE void total_of(const Sum& s, Lanes& total) {
  total = ((s.a + s.e) + (s.b + s.f)) + ((s.c + s.g) + (s.d + s.h));
}

/// Calls step(i, part) for eight elements after one another, with the partial sum's member.
#define ONEBIT_EIGHT(step, i) \
  step(i, a) step(i + 1, b) step(i + 2, c) step(i + 3, d) step(i + 4, e) step(i + 5, f) step(i + 6, g) step(i + 7, h)

template <bool kWeighted>
ONEBIT_INLINE void weigh(const Lanes* w, int i, Lanes& term) {
  if (kWeighted) term *= w[i];
}

template <bool kWeighted>
ONEBIT_INLINE void code(const Lanes* x, const Lanes* w, int n, const Lanes& scale, const Lanes& offset, float low,
                        float high, Lanes* codes, Lanes& error) {
  const Lanes zero = {}, least = zero + low, most = zero + high;
  const Lanes inverse = scale != zero ? 1.0f / scale : zero;
  Sum sum;
#define ONEBIT_STEP(i, part)                            \
  {                                                     \
    Lanes q;                                            \
    nearest((x[i] + offset) * inverse, least, most, q); \
    codes[i] = q;                                       \
    const Lanes rest = x[i] - (scale * q - offset);     \
    Lanes term = rest * rest;                           \
    weigh<kWeighted>(w, i, term);                       \
    sum.part += term;                                   \
  }
#pragma GCC unroll 1
  for (int i = 0; i < n; i += 8) {
    ONEBIT_EIGHT(ONEBIT_STEP, i)
  }
#undef ONEBIT_STEP
  total_of(sum, error);
}

template <bool kWeighted>
ONEBIT_INLINE void plain(const Lanes* x, const Lanes* w, const PlainRule& rule, const Lanes& d, const Lanes& m,
                         Lanes* codes, Lanes& error) {
  const Lanes zero = {}, most = zero + rule.high;
  const Lanes inverse = rule.step != zero ? 1.0f / rule.step : zero;
  Sum sum;
#define ONEBIT_STEP(i, part)                                                     \
  {                                                                              \
    Lanes q = (x[i] - rule.low) * inverse + rule.rounding;                       \
    q = q > zero ? q : zero;                                                     \
    q = q < most ? q : most;                                                     \
    codes[i] = __builtin_convertvector(__builtin_convertvector(q, Ints), Lanes); \
    const Lanes rest = x[i] - ((codes[i] - rule.shift) * d + m);                 \
    Lanes term = rest * rest;                                                    \
    weigh<kWeighted>(w, i, term);                                                \
    sum.part += term;                                                            \
  }
#pragma GCC unroll 1
  for (int i = 0; i < 32; i += 8) {
    ONEBIT_EIGHT(ONEBIT_STEP, i)
  }
#undef ONEBIT_STEP
  total_of(sum, error);
}

template <bool kWeighted>
ONEBIT_INLINE void symmetric(const Lanes* x, const Lanes* w, int n, float low, float high, Lanes& best_scale) {
  const Lanes zero = {}, least = zero + low, most = zero + high;
  Lanes extreme = zero, amax = zero, best_gain = zero;
  for (int j = 0; j < n; ++j) {
    const Lanes magnitude = x[j] < zero ? -x[j] : x[j];
    const Ints larger = magnitude > amax;
    extreme = larger ? x[j] : extreme;
    amax = larger ? magnitude : amax;
  }
  best_scale = zero;
#pragma GCC unroll 1
  for (int step = -9; step <= 9; ++step) {
    const float target = step <= 5 ? low - 0.1f * static_cast<float>(step) : high + 0.2f * static_cast<float>(step - 7);
    const Lanes inverse = target / extreme;
    Sum xq_sum, qq_sum;
#define ONEBIT_STEP(i, part)                 \
  {                                          \
    Lanes q;                                 \
    nearest(x[i] * inverse, least, most, q); \
    Lanes xq = x[i] * q, qq = q * q;         \
    weigh<kWeighted>(w, i, xq);              \
    weigh<kWeighted>(w, i, qq);              \
    xq_sum.part += xq;                       \
    qq_sum.part += qq;                       \
  }
#pragma GCC unroll 1
    for (int i = 0; i < n; i += 8) {
      ONEBIT_EIGHT(ONEBIT_STEP, i)
    }
#undef ONEBIT_STEP
    Lanes xq, qq;
    total_of(xq_sum, xq);
    total_of(qq_sum, qq);
    const Ints better = (qq > zero) & (xq * xq > best_gain * qq);
    best_gain = better ? xq * xq / qq : best_gain;
    best_scale = better ? xq / qq : best_scale;
  }
  best_scale = extreme != zero ? best_scale : zero;
}

template <bool kWeighted>
ONEBIT_INLINE void affine(const Lanes* x, const Lanes* w, float high, bool any_offset, Lanes& best_scale,
                          Lanes& best_offset) {
  constexpr int kN = 32;
  const Lanes zero = {}, most = zero + high;
  Lanes lowest = any_offset ? x[0] : zero, highest = lowest;
  Lanes codes[kN];
  Sum w_sum, x_sum;
#define ONEBIT_STEP(i, part)                   \
  {                                            \
    lowest = x[i] < lowest ? x[i] : lowest;    \
    highest = highest < x[i] ? x[i] : highest; \
    Lanes one = zero + 1.0f, value = x[i];     \
    weigh<kWeighted>(w, i, one);               \
    weigh<kWeighted>(w, i, value);             \
    w_sum.part += one;                         \
    x_sum.part += value;                       \
  }
#pragma GCC unroll 1
  for (int i = 0; i < kN; i += 8) {
    ONEBIT_EIGHT(ONEBIT_STEP, i)
  }
#undef ONEBIT_STEP
  const Lanes range = highest - lowest;
  Lanes sw, sx, best_error = zero, scale = range / high, offset = -lowest;
  total_of(w_sum, sw);
  total_of(x_sum, sx);
  Ints valid = range == range;
#pragma GCC unroll 1
  for (int step = -11; step <= 10; ++step) {  // the first is what spans the block
    if (step > -11) {
      const Lanes inverse = (high + 0.1f * static_cast<float>(step)) / range;
      Sum q_sum, qq_sum, xq_sum;
#define ONEBIT_STEP(i, part)                           \
  {                                                    \
    Lanes q;                                           \
    nearest((x[i] - lowest) * inverse, zero, most, q); \
    Lanes qq = q * q, xq = x[i] * q;                   \
    weigh<kWeighted>(w, i, q);                         \
    weigh<kWeighted>(w, i, qq);                        \
    weigh<kWeighted>(w, i, xq);                        \
    q_sum.part += q;                                   \
    qq_sum.part += qq;                                 \
    xq_sum.part += xq;                                 \
  }
#pragma GCC unroll 1
      for (int i = 0; i < kN; i += 8) {
        ONEBIT_EIGHT(ONEBIT_STEP, i)
      }
#undef ONEBIT_STEP
      Lanes sq, sqq, sxq;
      total_of(q_sum, sq);
      total_of(qq_sum, sqq);
      total_of(xq_sum, sxq);
      const Lanes determinant = sw * sqq - sq * sq;
      scale = (sw * sxq - sx * sq) / determinant;
      offset = (sq * sxq - sx * sqq) / determinant;
      if (!any_offset) {
        const Ints negative = offset < zero;
        scale = negative ? sxq / sqq : scale;
        offset = negative ? zero : offset;
      }
      valid = (determinant > zero) & (scale > zero);
    }
    Lanes error;
    code<kWeighted>(x, w, kN, scale, offset, 0, high, codes, error);
    const Ints better = step == -11 ? valid : valid & (error < best_error);
    best_error = better ? error : best_error;
    best_scale = better ? scale : best_scale;
    best_offset = better ? offset : best_offset;
  }
  best_scale = range > zero ? best_scale : zero;
  best_offset = range > zero ? best_offset : -lowest;
}

}  // namespace

ONEBIT_EACH_ISA void code_plainly(const Lanes* x, const Lanes* w, const PlainRule& rule, const Lanes& d, const Lanes& m,
                                  Lanes* codes, Lanes& error) {
  if (w) return plain<true>(x, w, rule, d, m, codes, error);
  plain<false>(x, w, rule, d, m, codes, error);
}

ONEBIT_EACH_ISA void code_with(const Lanes* x, const Lanes* w, int n, const Lanes& scale, const Lanes& offset,
                               float low, float high, Lanes* codes, Lanes& error) {
  if (w) return code<true>(x, w, n, scale, offset, low, high, codes, error);
  code<false>(x, w, n, scale, offset, low, high, codes, error);
}

ONEBIT_EACH_ISA void fit_symmetric(const Lanes* x, const Lanes* w, int n, float low, float high, Lanes& scale) {
  if (w) return symmetric<true>(x, w, n, low, high, scale);
  symmetric<false>(x, w, n, low, high, scale);
}

ONEBIT_EACH_ISA void fit_affine(const Lanes* x, const Lanes* w, float high, bool any_offset, Lanes& scale,
                                Lanes& offset) {
  if (w) return affine<true>(x, w, high, any_offset, scale, offset);
  affine<false>(x, w, high, any_offset, scale, offset);
}

}  // namespace onebit::lanes
