// The delta rule of the gated delta net on rows of S in registers, and the rows of inputs that it reads, in shared
// memory.
#pragma once

#include "backend/gpu/delta_net_rows.cuh"

namespace onebit::gpu {

/// kLanes lanes share a row of S, kColumns columns each; a warp has kRows x (32 / kLanes) rows, a block kWarps warps.
template <int kLanes_, int kColumns_, int kRows_, bool kWhole_, int kWarps_ = 4>
struct Shape {
  static constexpr int kLanes = kLanes_, kColumns = kColumns_, kRows = kRows_, kWarps = kWarps_;
  static constexpr bool kWhole = kWhole_;  // d_k = kLanes * kColumns and d_v is a multiple of a warp's rows
  static constexpr int kRowsOfWarp = kRows * (kWarp / kLanes);
};

template <class S>
struct Vector {
  float x[S::kColumns];

  /// The lane's columns are groups of four, kLanes groups apart.
  __device__ static int column(int i, int lane) { return 4 * (lane + S::kLanes * (i / 4)) + i % 4; }
  template <bool kWhole = S::kWhole>
  __device__ void load(const float* from, int lane, int d_k) {
#pragma unroll
    for (int i = 0; i < S::kColumns; i += 4) {
      if constexpr (kWhole) {
        const float4 four = *reinterpret_cast<const float4*>(from + column(i, lane));
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      } else {
#pragma unroll
        for (int j = i; j < i + 4; ++j) x[j] = column(j, lane) < d_k ? from[column(j, lane)] : 0.0f;
      }
    }
  }
  /// The lane's part of a product of two vectors.
  __device__ float times(const Vector& other) const {
    float even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < S::kColumns; i += 2) {
      even = fmaf(x[i], other.x[i], even);
      odd = fmaf(x[i + 1], other.x[i + 1], odd);
    }
    return even + odd;
  }
  __device__ void store(float* to, int lane, int d_k) const {
#pragma unroll
    for (int i = 0; i < S::kColumns; i += 4) {
      if constexpr (S::kWhole) {
        *reinterpret_cast<float4*>(to + column(i, lane)) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
      } else {
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
          if (column(j, lane) < d_k) to[column(j, lane)] = x[j];
        }
      }
    }
  }
};

/// What one step of the rule reads.
template <class S>
struct StepInput {
  Vector<S> q, k;
  float v[S::kRows];
  float decay, b, kq;
};

/// Rows on their way through shared memory, so that a step reads them at once: each with q, k, the v of this block's
/// rows of S, the gates and k.q. Two chunks take turns.
template <class S>
struct Stage {
  static constexpr int kRowsOfBlock = S::kWarps * S::kRowsOfWarp, kColumns = S::kLanes * S::kColumns;
  static constexpr int kChunk = S::kWhole ? 16 : 4;  // rows
  struct alignas(16) Row {
    float q[kColumns], k[kColumns], v[kRowsOfBlock];
    float2 gates;
    float kq, unused;
  };
  Row rows[2][kChunk];
  bool last;  // of the blocks that use a key head

  __device__ Row& row(int i) { return rows[i / kChunk % 2][i % kChunk]; }

  /// Starts copying row `row` of scratch to `to`; all threads take part.
  __device__ static void start(const DeltaNet& net, int64_t row, int head, int key_head, int first_j, Row& to) {
    const DeltaNetParams& p = net.params;
    const int d_k = static_cast<int>(p.d_k), d_v = static_cast<int>(p.d_v), thread = threadIdx.x;
    const float* c = net.scratch.c + row * net.memory.shape.n_channel;
    const float *q = c + key_head * d_k, *k = c + (p.n_k_head + key_head) * d_k;
    const float* v = c + 2 * p.n_k_head * d_k + static_cast<int64_t>(head) * d_v + first_j;
    if constexpr (S::kWhole) {
      constexpr int kPieces = kColumns / 4, kValues = kRowsOfBlock / 4;
      static_assert(2 * kPieces + kValues + 2 <= S::kWarps * kWarp);
      if (thread < kPieces) {
        copy_async<16>(to.q + 4 * thread, q + 4 * thread);
      } else if (thread < 2 * kPieces) {
        copy_async<16>(to.k + 4 * (thread - kPieces), k + 4 * (thread - kPieces));
      } else if (thread < 2 * kPieces + kValues) {
        copy_async<16>(to.v + 4 * (thread - 2 * kPieces), v + 4 * (thread - 2 * kPieces));
      } else if (thread == 2 * kPieces + kValues) {
        copy_async<8>(&to.gates, net.scratch.gates + (row * p.n_v_head + head) * 2);
      } else if (thread == 2 * kPieces + kValues + 1) {
        copy_async<4>(&to.kq, net.scratch.kq + row * p.n_k_head + key_head);
      }
    } else {
      for (int i = thread; i < kColumns; i += S::kWarps * kWarp) {
        to.q[i] = i < d_k ? q[i] : 0.0f;
        to.k[i] = i < d_k ? k[i] : 0.0f;
      }
      for (int i = thread; i < kRowsOfBlock; i += S::kWarps * kWarp) to.v[i] = first_j + i < d_v ? v[i] : 0.0f;
      if (thread < 1) to.gates = reinterpret_cast<const float2*>(net.scratch.gates)[row * p.n_v_head + head];
      if (thread == 2) to.kq = net.scratch.kq[row * p.n_k_head + key_head];
    }
  }
  __device__ static StepInput<S> read(const Row& from, const int (&j)[S::kRows], int first_j, int lane) {
    StepInput<S> in;
    in.q.template load<true>(from.q, lane, kColumns);
    in.k.template load<true>(from.k, lane, kColumns);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) in.v[r] = from.v[j[r] - first_j];
    in.decay = from.gates.x;
    in.b = from.gates.y;
    in.kq = from.kq;
    return in;
  }
};

template <class S>
__device__ inline float lanes_sum(float x) {
#pragma unroll
  for (int mask = S::kLanes / 2; mask > 0; mask /= 2) x += shfl_xor(x, mask);
  return x;
}

template <class S>
__device__ void step(Vector<S> (&s)[S::kRows], const StepInput<S>& in, float (&o)[S::kRows]) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const float seen = lanes_sum<S>(s[r].times(in.k)) * in.decay;
    const float shown = lanes_sum<S>(s[r].times(in.q)) * in.decay;
    const float delta = in.b * (in.v[r] - seen);
    o[r] = fmaf(in.kq, delta, shown);
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) s[r].x[i] = fmaf(s[r].x[i], in.decay, in.k.x[i] * delta);
  }
}

}  // namespace onebit::gpu
