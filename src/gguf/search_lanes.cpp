// Everything here is written once, for vectors V of 4, 8 or 16 lanes, and inlined into one function for each
// instruction set (in_parts()). Comparisons only choose between values: GCC 12 turns masks that are combined or kept
// into scalar code.
#include "gguf/search_lanes.h"

#include <cstring>

#include "base/error.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions only
#define ONEBIT_INLINED __attribute__((always_inline))

namespace onebit::lanes {
namespace {

typedef float Four __attribute__((vector_size(16)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Sixteen __attribute__((vector_size(64)));

// --- the instruction set --------------------------------------------------------------------------------------------

/// A vector type as an argument.
template <class V>
struct Width {
  using Vector = V;
  static constexpr int kCount = sizeof(V) / sizeof(float);
};

template <class V, class Search>
ONEBIT_INLINED inline void all_lanes(const Search& search) {
  for (int from = 0; from < kLanes; from += Width<V>::kCount) search(Width<V>(), from);
}

#if defined(__x86_64__)
template <class Search>
__attribute__((target("avx512f"))) void in_avx512(const Search& search) {
  all_lanes<Sixteen>(search);
}

template <class Search>
__attribute__((target("avx2"))) void in_avx2(const Search& search) {
  all_lanes<Eight>(search);
}
#endif

/// Calls search(width, first lane) until all lanes are done.
template <class Search>
void in_parts(int width, const Search& search) {
#if defined(__x86_64__)
  if (width == 16) return in_avx512(search);
  if (width == 8) return in_avx2(search);
#endif
  CHECK(width == 4);
  all_lanes<Four>(search);
}

// --- lanes ----------------------------------------------------------------------------------------------------------

/// Some lanes of an array.
template <class V>
struct Part {
  const float* first;

  ONEBIT_INLINED Part(const Lanes* lanes, int from) : first(lanes->of + from) {}
  ONEBIT_INLINED V operator[](int i) const {
    V value;
    std::memcpy(&value, first + kLanes * i, sizeof value);
    return value;
  }
};

template <class V>
ONEBIT_INLINED inline V get(const Lanes& lanes, int from) {
  return Part<V>(&lanes, from)[0];
}

template <class V>
ONEBIT_INLINED inline void put(const V& value, Lanes& lanes, int from) {
  std::memcpy(lanes.of + from, &value, sizeof value);
}

/// Zeros that the compiler does not know to be zeros: GCC 12 makes two instructions of a maximum with a known one.
template <class V>
ONEBIT_INLINED inline V hidden_zero() {
  V zero = {};
  __asm__("" : "+m"(zero));
  return zero;
}

/// Weights, or none: all elements count alike.
template <class V, bool kWeighted>
struct Weights {
  const Lanes* w;
  int from;

  ONEBIT_INLINED V times(int i, const V& value) const {
    if constexpr (kWeighted) return Part<V>(w, from)[i] * value;
    return value;
  }
};

/// As in blocks_search.cpp: halves to even, NaN gives low.
template <class V>
ONEBIT_INLINED inline V nearest(const V& any, const V& low, const V& high) {
  constexpr float kShift = 0x1.8p23f;
  V value = any > low ? any : low;
  value = value < high ? value : high;
  return (value + kShift) - kShift;
}

/// Eight interleaved partial sums.
template <class V>
struct Sum {
  V part[8] = {};

  ONEBIT_INLINED V total() const {
    return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
  }
};

/// Calls step(i, i % 8) for n elements; those of one partial sum in order.
template <int kN, class Step>
ONEBIT_INLINED inline void each(const Step& step) {
#pragma GCC unroll 1
  for (int i = 0; i < kN; i += 8) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) step(i + k, k);
  }
}

/// Calls search(weights) with or without them.
template <class V, class Search>
ONEBIT_INLINED inline void with_weights(const Lanes* w, int from, const Search& search) {
  if (w) return search(Weights<V, true>{w, from});
  search(Weights<V, false>{w, from});
}

// --- searches -------------------------------------------------------------------------------------------------------

template <int kN, class V>
ONEBIT_INLINED inline V extreme_of(const Part<V>& x) {
  const V zero = {};
  V extreme = zero, amax = zero;
#pragma GCC unroll 32
  for (int i = 0; i < kN; ++i) {
    const V value = x[i], magnitude = value < zero ? -value : value;
    extreme = magnitude > amax ? value : extreme;
    amax = magnitude > amax ? magnitude : amax;
  }
  return extreme;
}

/// y = scale q - offset, q the nearest in [low, high].
template <class V>
struct Grid {
  V scale, offset, low, high;
};

/// The squared error; the codes are written if `codes` is not null.
template <int kN, class V, class W>
ONEBIT_INLINED inline V error_of(const Part<V>& x, const W& w, const Grid<V>& grid, Lanes* codes, int from) {
  const V inverse = grid.scale != V{} ? 1.0f / grid.scale : V{};
  Sum<V> sum;
  each<kN>([&](int i, int k) ONEBIT_INLINED {
    const V q = nearest<V>((x[i] + grid.offset) * inverse, grid.low, grid.high);
    if (codes) put(q, codes[i], from);
    const V rest = x[i] - (grid.scale * q - grid.offset);
    sum.part[k] += w.times(i, rest * rest);
  });
  return sum.total();
}

template <class V, class W>
ONEBIT_INLINED inline V plain_error(const Part<V>& x, const W& w, const PlainRule& rule, const V& d, const V& m,
                                    Lanes* codes, int from) {
  typedef int32_t Ints __attribute__((vector_size(sizeof(V))));
  const V zero = hidden_zero<V>(), most = zero + rule.high, low = get<V>(rule.low, from),
          step = get<V>(rule.step, from);
  const V inverse = step != zero ? 1.0f / step : zero;
  Sum<V> sum;
  each<32>([&](int i, int k) ONEBIT_INLINED {
    V q = (x[i] - low) * inverse + rule.rounding;
    q = q > zero ? q : zero;
    q = q < most ? q : most;
    q = __builtin_convertvector(__builtin_convertvector(q, Ints), V);
    put(q, codes[i], from);
    const V rest = x[i] - ((q - rule.shift) * d + m);
    sum.part[k] += w.times(i, rest * rest);
  });
  return sum.total();
}

template <int kN, class V, class W>
ONEBIT_INLINED inline V symmetric(const Part<V>& x, const W& w, float low, float high) {
  const V zero = {}, least = zero + low, most = zero + high, extreme = extreme_of<kN>(x);
  V best_gain = zero, best_scale = zero;
#pragma GCC unroll 1
  for (int step = -9; step <= 9; ++step) {
    const float target = step <= 5 ? low - 0.1f * static_cast<float>(step) : high + 0.2f * static_cast<float>(step - 7);
    const V inverse = target / extreme;
    Sum<V> xq_sum, qq_sum;
    each<kN>([&](int i, int k) ONEBIT_INLINED {
      const V q = nearest<V>(x[i] * inverse, least, most);
      xq_sum.part[k] += w.times(i, x[i] * q);
      qq_sum.part[k] += w.times(i, q * q);
    });
    const V xq = xq_sum.total(), qq = qq_sum.total(), gain = xq * xq / qq, scale = xq / qq;
    // Without codes (qq = 0) or with a gain that is not larger, the bound stays what it was.
    const V bar = best_gain * qq, reached = qq > zero ? xq * xq : bar;
    best_gain = reached > bar ? gain : best_gain;
    best_scale = reached > bar ? scale : best_scale;
  }
  return extreme != zero ? best_scale : zero;
}

/// Sums that a least-squares fit of scale and offset needs.
template <class V>
struct AffineSums {
  V w, x, q, qq, xq;
};

template <class V, class W>
ONEBIT_INLINED inline void sum_codes(const Part<V>& x, const W& w, const V& lowest, const V& inverse, const V& zero,
                                     const V& most, AffineSums<V>& sums) {
  Sum<V> q_sum, qq_sum, xq_sum;
  each<32>([&](int i, int k) ONEBIT_INLINED {
    const V q = nearest<V>((x[i] - lowest) * inverse, zero, most);
    q_sum.part[k] += w.times(i, q);
    qq_sum.part[k] += w.times(i, q * q);
    xq_sum.part[k] += w.times(i, x[i] * q);
  });
  sums.q = q_sum.total();
  sums.qq = qq_sum.total();
  sums.xq = xq_sum.total();
}

template <class V>
ONEBIT_INLINED inline void range_of(const Part<V>& x, V& lowest, V& highest) {
#pragma GCC unroll 32
  for (int i = 0; i < 32; ++i) {
    const V value = x[i];
    lowest = value < lowest ? value : lowest;
    highest = highest < value ? value : highest;
  }
}

template <class V, class W>
ONEBIT_INLINED inline void affine(const Part<V>& x, const W& w, float high, bool any_offset, V& best_scale,
                                  V& best_offset) {
  const V zero = hidden_zero<V>(), most = zero + high;
  V lowest = any_offset ? x[0] : zero, highest = lowest;
  range_of(x, lowest, highest);
  Sum<V> w_sum, x_sum;
  each<32>([&](int i, int k) ONEBIT_INLINED {
    w_sum.part[k] += w.times(i, zero + 1.0f);
    x_sum.part[k] += w.times(i, x[i]);
  });
  const V range = highest - lowest;
  AffineSums<V> sums{w_sum.total(), x_sum.total(), {}, {}, {}};
  best_scale = range / high;
  best_offset = -lowest;
  V best_error = error_of<32>(x, w, Grid<V>{best_scale, best_offset, zero, most}, nullptr, 0);
#pragma GCC unroll 1
  for (int step = -10; step <= 10; ++step) {
    sum_codes<V>(x, w, lowest, (high + 0.1f * static_cast<float>(step)) / range, zero, most, sums);
    const V determinant = sums.w * sums.qq - sums.q * sums.q;
    V scale = (sums.w * sums.xq - sums.x * sums.q) / determinant;
    V offset = (sums.q * sums.xq - sums.x * sums.qq) / determinant;
    if (!any_offset) {
      scale = offset < zero ? sums.xq / sums.qq : scale;
      offset = offset < zero ? zero : offset;
    }
    V error = error_of<32>(x, w, Grid<V>{scale, offset, zero, most}, nullptr, 0);
    error = determinant > zero ? error : best_error;  // no better, then
    error = scale > zero ? error : best_error;
    best_scale = error < best_error ? scale : best_scale;
    best_offset = error < best_error ? offset : best_offset;
    best_error = error < best_error ? error : best_error;
  }
  best_scale = range > zero ? best_scale : zero;
  best_offset = range > zero ? best_offset : -lowest;
}

}  // namespace

int register_lanes() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return 16;
  if (__builtin_cpu_supports("avx2")) return 8;
#endif
  return 4;
}

void find_extreme(const Lanes* x, Lanes& extreme, int n_lane) {
  in_parts(n_lane, [&](auto width, int from) ONEBIT_INLINED {
    using V = typename decltype(width)::Vector;
    put(extreme_of<32>(Part<V>(x, from)), extreme, from);
  });
}

void find_range(const Lanes* x, Lanes& low, Lanes& high, int n_lane) {
  in_parts(n_lane, [&](auto width, int from) ONEBIT_INLINED {
    using V = typename decltype(width)::Vector;
    const Part<V> part(x, from);
    V lowest = part[0], highest = lowest;
    range_of(part, lowest, highest);
    put(lowest, low, from);
    put(highest, high, from);
  });
}

void code_plainly(const Lanes* x, const Lanes* w, const PlainRule& rule, const Lanes& d, const Lanes& m, Lanes* codes,
                  Lanes& error, int n_lane) {
  in_parts(n_lane, [&](auto width, int from) ONEBIT_INLINED {
    using V = typename decltype(width)::Vector;
    with_weights<V>(w, from, [&](auto weights) ONEBIT_INLINED {
      put(plain_error<V>(Part<V>(x, from), weights, rule, get<V>(d, from), get<V>(m, from), codes, from), error, from);
    });
  });
}

void code_with(const Lanes* x, const Lanes* w, int n, const Lanes& scale, const Lanes& offset, float low, float high,
               Lanes* codes, Lanes& error, int n_lane) {
  CHECK(n == 16 || n == 32);
  in_parts(n_lane, [&](auto width, int from) ONEBIT_INLINED {
    using V = typename decltype(width)::Vector;
    const Grid<V> grid{get<V>(scale, from), get<V>(offset, from), V{} + low, V{} + high};
    with_weights<V>(w, from, [&](auto weights) ONEBIT_INLINED {
      const Part<V> part(x, from);
      const auto found = [&](Lanes* to) ONEBIT_INLINED {
        return n == 16 ? error_of<16>(part, weights, grid, to, from) : error_of<32>(part, weights, grid, to, from);
      };
      put(codes ? found(codes) : found(nullptr), error, from);
    });
  });
}

void fit_symmetric(const Lanes* x, const Lanes* w, int n, float low, float high, Lanes& scale, int n_lane) {
  CHECK(n == 16 || n == 32);
  in_parts(n_lane, [&](auto width, int from) ONEBIT_INLINED {
    using V = typename decltype(width)::Vector;
    with_weights<V>(w, from, [&](auto weights) ONEBIT_INLINED {
      const Part<V> part(x, from);
      put(n == 16 ? symmetric<16>(part, weights, low, high) : symmetric<32>(part, weights, low, high), scale, from);
    });
  });
}

void fit_affine(const Lanes* x, const Lanes* w, float high, bool any_offset, Lanes& scale, Lanes& offset, int n_lane) {
  in_parts(n_lane, [&](auto width, int from) ONEBIT_INLINED {
    using V = typename decltype(width)::Vector;
    with_weights<V>(w, from, [&](auto weights) ONEBIT_INLINED {
      V best_scale, best_offset;
      affine<V>(Part<V>(x, from), weights, high, any_offset, best_scale, best_offset);
      put(best_scale, scale, from);
      put(best_offset, offset, from);
    });
  });
}

}  // namespace onebit::lanes
