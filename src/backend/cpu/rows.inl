// Kernels on rows of f32, written once over Vec and compiled for each instruction set (kernels_*.cpp includes this
// after its vec_*.h). The table in kernels.h says what each computes.
#pragma once

namespace onebit::cpu {
namespace {

/// Calls f(i, count) for i = 0, 16, ...: count is 16 but for the last, which has what is left.
template <class F>
ONEBIT_INLINE void each_vec(int64_t n, F f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, 16);
  if (i < n) f(i, static_cast<int>(n - i));
}

/// e^x within 2 ulp; 0 below -87.3, infinity above 88.4. Range reduction by ln 2 in two parts, then the polynomial of
/// degree 7 from the Cephes library's expf.
ONEBIT_INLINE Vec exp_of(Vec x) {
  const Vec bounded = min(set(88.5f), max(set(-87.5f), x));
  const Vec n = round_even(bounded * set(1.44269504088896341f));
  Vec r = fma(n, set(-0.693359375f), bounded);
  r = fma(n, set(2.12194440e-4f), r);
  Vec p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  const Vec y = fma(p, r * r, r + set(1.0f)) * power_of_two(n);
  return where_less(x, set(-87.3f), set(0.0f), y);
}

ONEBIT_INLINE Vec sigmoid_of(Vec x) { return set(1.0f) / (set(1.0f) + exp_of(set(0.0f) - x)); }

float sum_squares(const float* x, int64_t n) {
  Vec even = set(0), odd = set(0);  // two chains hide the latency of the multiply-add
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const Vec a = load(x + i), b = load(x + i + 16);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  each_vec(n - i, [&](int64_t j, int count) {
    const Vec a = load(x + i + j, count);
    even = fma(a, a, even);
  });
  return sum(even + odd);
}

float dot(const float* x, const float* y, int64_t n) {
  Vec total = set(0);
  each_vec(n, [&](int64_t i, int count) { total = fma(load(x + i, count), load(y + i, count), total); });
  return sum(total);
}

float max_of(const float* x, int64_t n) {
  const Vec lowest = set(-__builtin_inff());
  Vec best = lowest;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) best = max(load(x + i), best);
  float result = largest(best);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

float exp_sum(const float* x, float peak, int64_t n, float* y) {
  const Vec top = set(peak);
  Vec total = set(0);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Vec e = exp_of(load(x + i) - top);
    store(e, y + i);
    total = total + e;
  }
  float rest = 0;
  if (i < n) {  // the lanes past the end must not count
    const int count = static_cast<int>(n - i);
    store(exp_of(load(x + i, count) - top), y + i, count);
    for (; i < n; ++i) rest += y[i];
  }
  return sum(total) + rest;
}

/// One query of soften.
float soften_one(float* x, uint64_t seen, float* peak, float* total) {
  const int64_t begin = seen ? __builtin_ctzll(seen) : 0, end = seen ? 64 - __builtin_clzll(seen) : 0;
  for (int64_t i = 0; i < begin; ++i) x[i] = 0;
  for (int64_t i = end; i < 64; ++i) x[i] = 0;
  const float before = *peak, here = max_of(x + begin, end - begin), top = here > before ? here : before;
  if (top == -__builtin_inff()) {  // nothing seen so far
    for (int64_t i = begin; i < end; ++i) x[i] = 0;
    return 1;
  }
  const float fade = top == before || before == -__builtin_inff() ? 1.0f : largest(exp_of(set(before - top)));
  *peak = top;
  *total = *total * fade + exp_sum(x + begin, top, end - begin, x + begin);
  return fade;
}

void soften(const Softmax& q, int64_t n) {
  for (int64_t i = 0; i < n; ++i) q.fade[i] = soften_one(q.scores + 64 * i, q.seen[i], q.peak + i, q.sum + i);
}

void scale(const float* x, float s, int64_t n, float* y) {
  const Vec by = set(s);
  each_vec(n, [&](int64_t i, int count) { store(load(x + i, count) * by, y + i, count); });
}

void add(const float* a, const float* b, int64_t n, float* y) {
  each_vec(n, [&](int64_t i, int count) { store(load(a + i, count) + load(b + i, count), y + i, count); });
}

void axpy(float s, const float* x, int64_t n, float* y) {
  const Vec by = set(s);
  each_vec(n, [&](int64_t i, int count) { store(fma(by, load(x + i, count), load(y + i, count)), y + i, count); });
}

void mul_scaled(const float* x, const float* w, float s, int64_t n, float* y) {
  const Vec by = set(s);
  each_vec(n, [&](int64_t i, int count) { store(load(x + i, count) * by * load(w + i, count), y + i, count); });
}

void gate_scaled(const float* x, const float* w, const float* z, float s, int64_t n, float* y) {
  const Vec by = set(s);
  each_vec(n, [&](int64_t i, int count) {
    const Vec gate = load(z + i, count);
    store(load(x + i, count) * by * load(w + i, count) * (gate * sigmoid_of(gate)), y + i, count);
  });
}

void sigmoid_mul(const float* x, const float* g, int64_t n, float* y) {
  each_vec(n, [&](int64_t i, int count) { store(load(x + i, count) * sigmoid_of(load(g + i, count)), y + i, count); });
}

void swiglu(const float* gate, const float* up, int64_t n, float* y) {
  each_vec(n, [&](int64_t i, int count) {
    const Vec g = load(gate + i, count);
    store(g * sigmoid_of(g) * load(up + i, count), y + i, count);
  });
}

/// tanh(t) = 1 - 2 / (e^(2t) + 1); its error is small against the cap, which is the scale of the result.
void softcap(const float* x, float s, float cap, int64_t n, float* y) {
  if (!(cap > 0)) return scale(x, s, n, y);
  const Vec by = set(s), limit = set(cap), one = set(1), two = set(2);
  each_vec(n, [&](int64_t i, int count) {
    const Vec t = load(x + i, count) * by / limit;
    store(limit * (one - two / (exp_of(t + t) + one)), y + i, count);
  });
}

void rotate(float* a, float* b, const float* cosine, const float* sine, int64_t n) {
  each_vec(n, [&](int64_t i, int count) {
    const Vec x = load(a + i, count), y = load(b + i, count), c = load(cosine + i, count), s = load(sine + i, count);
    store(x * c - y * s, a + i, count);
    store(x * s + y * c, b + i, count);
  });
}

void conv_silu(const float* const* rows, const float* taps, int64_t tap_row, int64_t n_tap, int64_t n, float* y) {
  each_vec(n, [&](int64_t i, int count) {
    Vec total = set(0);
    for (int64_t m = 0; m < n_tap; ++m)
      total = fma(load(taps + m * tap_row + i, count), load(rows[m] + i, count), total);
    store(total * sigmoid_of(total), y + i, count);
  });
}

void group_axpy(const float* base, const float* delta, int64_t group, const float* x, int64_t n, float* y) {
  for (int64_t at = 0; at < n; at += group) {
    const Vec shift = set(*delta++);
    each_vec(group, [&](int64_t i, int count) {
      const Vec coefficient = load(base + at + i, count) + shift;
      store(fma(coefficient, load(x + at + i, count), load(y + at + i, count)), y + at + i, count);
    });
  }
}

int64_t find_above(const float* x, int64_t from, int64_t n, float limit) {
  const Vec bound = set(limit);
  int64_t i = from;
  for (; i + 16 <= n; i += 16) {
    const uint32_t found = bits_greater(load(x + i), bound);
    if (found) return i + __builtin_ctz(found);
  }
  for (; i < n; ++i) {
    if (x[i] > limit) return i;
  }
  return n;
}

void to_f16(const float* x, int64_t n, uint16_t* y) {
  each_vec(n, [&](int64_t i, int count) { store_f16(load(x + i, count), y + i, count); });
}

void from_f16(const uint16_t* x, int64_t n, float* y) {
  each_vec(n, [&](int64_t i, int count) { store(load_f16(x + i, count), y + i, count); });
}

// Plain loops over 8-bit integers, which compilers turn into each instruction set's widening conversions.
void from_q8_columns(const int8_t* codes, const uint16_t* scales, int64_t row, int64_t n, float* y) {
  for (int64_t j = 0; j < n; j += 16) {
    const int count = static_cast<int>(n - j < 16 ? n - j : 16);
    float scale[16];
    store(load_f16(scales + j, count), scale, count);
    for (int64_t i = 0; i < kBlock; ++i) {
      for (int k = 0; k < count; ++k) y[i * row + j + k] = scale[k] * static_cast<float>(codes[i * row + j + k]);
    }
  }
}

void from_q8_blocks(const int8_t* codes, const uint16_t* scales, int64_t n_block, float* y) {
  for (int64_t b = 0; b < n_block; ++b, codes += kBlock, y += kBlock) {
    float scale[1];
    store(load_f16(scales + b, 1), scale, 1);
    for (int i = 0; i < kBlock; ++i) y[i] = scale[0] * static_cast<float>(codes[i]);
  }
}

/// delta_step on NV vectors of columns at once. With decay d: s^T k and s^T q of the old state come from one pass, and
/// o = d s^T q + (k q) delta, so that the state is read twice and written once; 64 columns of it stay in L1 between.
template <int NV>
ONEBIT_INLINE void delta_columns(float* s, int64_t d_k, int64_t d_v, const float* q, const float* k, float kq,
                                 const float* v, float decay, float b, float* o, int count) {
  Vec seen[NV], out[NV];
  for (int j = 0; j < NV; ++j) seen[j] = out[j] = set(0);
  for (int64_t i = 0; i < d_k; ++i) {
    const Vec ki = set(k[i]), qi = set(q[i]);
    for (int j = 0; j < NV; ++j) {
      const Vec x = load(s + i * d_v + 16 * j, count);
      seen[j] = fma(x, ki, seen[j]);
      out[j] = fma(x, qi, out[j]);
    }
  }
  const Vec fade = set(decay), rate = set(b), overlap = set(kq);
  Vec delta[NV];
  for (int j = 0; j < NV; ++j) {
    delta[j] = rate * (load(v + 16 * j, count) - fade * seen[j]);
    store(fma(overlap, delta[j], fade * out[j]), o + 16 * j, count);
  }
  for (int64_t i = 0; i < d_k; ++i) {
    const Vec ki = set(k[i]);
    for (int j = 0; j < NV; ++j) {
      float* at = s + i * d_v + 16 * j;
      store(fma(ki, delta[j], fade * load(at, count)), at, count);
    }
  }
}

void delta_step(float* s, int64_t d_k, int64_t d_v, const float* q, const float* k, const float* v, float decay,
                float b, float* o) {
  const float kq = dot(k, q, d_k);
  int64_t j = 0;
  for (; j + 64 <= d_v; j += 64) delta_columns<4>(s + j, d_k, d_v, q, k, kq, v + j, decay, b, o + j, 16);
  for (; j < d_v; j += 16) {
    const int count = d_v - j < 16 ? static_cast<int>(d_v - j) : 16;
    delta_columns<1>(s + j, d_k, d_v, q, k, kq, v + j, decay, b, o + j, count);
  }
}

}  // namespace
}  // namespace onebit::cpu
