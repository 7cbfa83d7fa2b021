// What the gated delta net's kernels make of a row of inputs before the delta rule: convolution, SiLU, norms of q and
// k, gates. A warp a head.
#pragma once

#include "backend/gpu/device.cuh"
#include "backend/gpu/kernels.h"

namespace onebit::gpu {

/// Where scratch holds what convolve made of a row; rows: n_tok of the batch, then n_tape of each sequence.
struct DeltaScratch {
  float* c;      // [n_row, n_channel]: q and k normed, v
  float* gates;  // [n_row, n_v_head, 2]: decay, b
  float* kq;     // [n_row, n_k_head]
};

struct DeltaNet {
  DeltaNetParams params;
  DeltaMemory memory;
  DeltaNetCall call;
  BatchRows rows;
  DeltaScratch scratch;
  int32_t* counters;  // [sequence, key head] of 0

  __device__ int64_t tape_row(int sequence, int64_t i) const { return rows.n_tok + sequence * memory.n_tape + i; }
  /// Row e of a sequence's inputs: the window's rows are e < 0, the tape's rows to be applied come first.
  __device__ const float* input(const DeviceSequence& s, int64_t e) const {
    const int64_t n_channel = memory.shape.n_channel;
    if (e < 0) return memory.window(s.slot) + (memory.shape.n_tap - 1 + e) * n_channel;
    if (e < s.n_commit) return memory.tape(s.slot, e);
    return call.u + (s.row + e - s.n_commit) * n_channel;
  }
};

/// beta and alpha [n_v_head] of input e.
__device__ inline const float* gates_of(const DeltaNet& net, const DeviceSequence& s, int64_t e, const float*& alpha) {
  const int64_t n_v = net.params.n_v_head, row = s.row + e - s.n_commit;
  const float* beta =
      e < s.n_commit ? net.memory.tape(s.slot, e) + net.memory.shape.n_channel : net.call.beta + row * n_v;
  alpha = e < s.n_commit ? beta + n_v : net.call.alpha + row * n_v;
  return beta;
}

__device__ inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/// silu of the convolution of `d` channels from `first` on, lane l taking channels l, l + 32, ... kTaps: n_tap where it
/// is known, so that all of a lane's loads are under way at once; 0: any.
template <int kTaps, int kPerLane>
__device__ void convolve_channels(const DeltaNet& net, const DeviceSequence& s, int64_t e, int64_t first, int d,
                                  float (&c)[kPerLane]) {
  const int n_tap = kTaps > 0 ? kTaps : static_cast<int>(net.params.n_tap), lane = threadIdx.x % kWarp;
  float sums[kPerLane] = {};
#pragma unroll(kTaps > 0 ? kTaps : 1)
  for (int m = 0; m < n_tap; ++m) {
    const float* u = net.input(s, e - (n_tap - 1) + m) + first;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int channel = lane + i * kWarp;
      if (channel < d) sums[i] += net.call.conv[(first + channel) * n_tap + m] * u[channel];
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) c[i] = lane + i * kWarp < d ? silu_of(sums[i]) : 0.0f;
}

template <int kPerLane>
__device__ inline float dot(const float (&a)[kPerLane], const float (&b)[kPerLane]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum = fmaf(a[i], b[i], sum);
  return warp_sum(sum);
}

template <int kPerLane>
__device__ inline void store_channels(const float (&c)[kPerLane], float* to, int d) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int channel = threadIdx.x % kWarp + i * kWarp;
    if (channel < d) to[channel] = c[i];
  }
}

/// What the rule reads of a key head: q and k, normed, and k.q.
template <int kTaps, int kPerLane>
__device__ float convolve_key_head(const DeltaNet& net, const DeviceSequence& s, int64_t e, int head,
                                   float (&q)[kPerLane], float (&k)[kPerLane]) {
  const DeltaNetParams& p = net.params;
  const int d_k = static_cast<int>(p.d_k);
  const int64_t first = static_cast<int64_t>(head) * d_k;
  convolve_channels<kTaps>(net, s, e, first, d_k, q);
  convolve_channels<kTaps>(net, s, e, p.n_k_head * d_k + first, d_k, k);
  const float q_norm = sqrtf(dot(q, q) + p.eps), k_norm = sqrtf(dot(k, k) + p.eps);
  const float q_scale = 1 / sqrtf(static_cast<float>(d_k));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    q[i] = q[i] / q_norm * q_scale;
    k[i] = k[i] / k_norm;
  }
  return dot(k, q);
}
/// Decay and b of a value head.
__device__ inline float2 gates_at(const DeltaNet& net, const DeviceSequence& s, int64_t e, int head) {
  const float* alpha;
  const float* beta = gates_of(net, s, e, alpha);
  return {expf(net.call.a[head] * softplus(alpha[head] + net.call.dt[head])), sigmoid_of(beta[head])};
}

/// Moves the window past the applied rows, and past the batch's unless they are under test; those go to the tape.
__device__ inline void advance_inputs(const DeltaNet& net, const DeviceSequence& s, int64_t channel) {
  const int64_t n_channel = net.memory.shape.n_channel, n_v = net.memory.shape.n_v_head;
  const int n_before = static_cast<int>(net.memory.shape.n_tap) - 1;
  if (channel < n_channel) {
    const int64_t end = s.n_commit + (s.verify ? 0 : s.n_tok);
    float kept[kMaxConvTaps];
    for (int m = 0; m < n_before; ++m) kept[m] = net.input(s, end - n_before + m)[channel];
    for (int m = 0; m < n_before; ++m) net.memory.window(s.slot)[m * n_channel + channel] = kept[m];
  } else if (channel >= n_channel + 2 * n_v) {
    return;
  }
  if (!s.verify) return;
  const float* from = channel < n_channel         ? net.call.u + channel
                      : channel < n_channel + n_v ? net.call.beta + channel - n_channel
                                                  : net.call.alpha + channel - n_channel - n_v;
  const int64_t width = channel < n_channel ? n_channel : n_v;
  constexpr int kAtOnce = 8;
  for (int first = 0; first < s.n_tok; first += kAtOnce) {
    float x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = from[(s.row + min(first + i, s.n_tok - 1)) * width];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < s.n_tok) net.memory.tape(s.slot, first + i)[channel] = x[i];
    }
  }
}

}  // namespace onebit::gpu
