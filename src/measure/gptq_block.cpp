// Written with vectors of 16 lanes; the compiler makes a version for each instruction set and the loader picks one.
#include "measure/gptq_block.h"

#include <cmath>
#include <cstring>

#include "base/half.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ONEBIT_EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ONEBIT_EACH_ISA
#endif
#define ONEBIT_INLINE __attribute__((always_inline)) static inline

namespace onebit {
namespace {

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Mask __attribute__((vector_size(64)));

constexpr int kN = 32;

#define LANES(p) (*reinterpret_cast<const Lanes*>(p))

ONEBIT_INLINE void nearest_code(const Lanes& x, Lanes& q) {
  constexpr float kShift = 0x1.8p23f;  // adding it leaves no room for a fraction
  const Lanes zero = {};
  const Lanes low = zero - 8.0f, high = zero + 7.0f;
  q = x > low ? x : low;
  q = q < high ? q : high;
  q = (q + kShift) - kShift;
}

/// Codes for `scale` with feedback from column to column, and their loss.
ONEBIT_INLINE void code_block(const GptqLanes& lanes, const float* u, const float* d, const Lanes& scale, Lanes* codes,
                              Lanes& loss) {
  const Lanes zero = {};
  const Lanes inverse = scale != zero ? 1.0f / scale : zero;
  Lanes feedback[kN] = {};
  loss = zero;
  for (int j = 0; j < kN; ++j) {
    const Lanes x = LANES(lanes.target[j]), wanted = x + feedback[j];
    nearest_code(wanted * inverse, codes[j]);
    const Lanes y = codes[j] * scale, error = x - y, rest = wanted - y;
    loss += d[j] * rest * rest;
    for (int m = j + 1; m < kN; ++m) feedback[m] += u[j * kN + m] * error;
  }
}

/// sum_j d_j (a u)_j (b u)_j for columns a, b.
ONEBIT_INLINE void inner(const Lanes* a, const Lanes* b, const float* u, const float* d, Lanes& sum) {
  sum = Lanes{};
  for (int j = 0; j < kN; ++j) {
    Lanes left = a[j], right = b[j];
    for (int m = 0; m < j; ++m) {
      left += u[m * kN + j] * a[m];
      right += u[m * kN + j] * b[m];
    }
    sum += d[j] * left * right;
  }
}

/// Nearest values that f16 can hold.
ONEBIT_INLINE void to_half(Lanes& x) {
  float values[kGptqLanes];
  std::memcpy(values, &x, sizeof values);
  for (float& value : values) value = f16_to_f32(f32_to_f16(value));
  std::memcpy(&x, values, sizeof values);
}

struct Best {
  Lanes codes[kN], scale, loss;
};

ONEBIT_INLINE void take_better(const Lanes* codes, const Lanes& scale, const Lanes& loss, Best& best) {
  const Mask better = loss < best.loss;
  for (int j = 0; j < kN; ++j) best.codes[j] = better ? codes[j] : best.codes[j];
  best.scale = better ? scale : best.scale;
  best.loss = better ? loss : best.loss;
}

}  // namespace

ONEBIT_EACH_ISA void round_lanes(const float* u, const float* d, bool keep, GptqLanes& lanes) {
  const Lanes zero = {};
  Best best;
  best.loss = zero + INFINITY;
  best.scale = zero;
  Lanes targets[kN], codes[kN], loss, largest = zero, extreme = zero;
  for (int j = 0; j < kN; ++j) {
    targets[j] = LANES(lanes.target[j]);
    best.codes[j] = zero;
    const Lanes magnitude = targets[j] < zero ? -targets[j] : targets[j];
    extreme = magnitude > largest ? targets[j] : extreme;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (keep) {
    Lanes error[kN];
    for (int j = 0; j < kN; ++j) {
      best.codes[j] = LANES(lanes.code[j]);
      error[j] = targets[j] - best.codes[j] * LANES(lanes.scale);
    }
    best.scale = LANES(lanes.scale);
    inner(error, error, u, d, best.loss);
  }
  for (int step = -9; step <= 9; ++step) {
    // The extreme may take the longer side of the range or, for the last few, the shorter one.
    const float end = step <= 5 ? -8 - 0.1f * static_cast<float>(step) : 7 + 0.2f * static_cast<float>(step - 7);
    Lanes scale = extreme / end;
    to_half(scale);
    code_block(lanes, u, d, scale, codes, loss);
    take_better(codes, scale, loss, best);
  }
  // The least-squares scale of the codes so far, with codes of its own.
  for (int i = 0; i < 2; ++i) {
    Lanes xq, qq;
    inner(targets, best.codes, u, d, xq);
    inner(best.codes, best.codes, u, d, qq);
    Lanes scale = qq > zero ? xq / qq : zero;
    to_half(scale);
    code_block(lanes, u, d, scale, codes, loss);
    take_better(codes, scale, loss, best);
  }
  for (int j = 0; j < kN; ++j) std::memcpy(lanes.code[j], &best.codes[j], sizeof best.codes[j]);
  std::memcpy(lanes.scale, &best.scale, sizeof best.scale);
}

}  // namespace onebit
