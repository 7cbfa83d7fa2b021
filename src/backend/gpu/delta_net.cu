// The gated delta net in two launches.
//
// 1. convolve: for every row (and every tape row that is to be applied) the convolution, SiLU, the norms of q and k,
//    k.q and the gates go to scratch. Bytes: u once, scratch once.
// 2. advance: the delta rule, one row after another. A warp keeps 8 rows of a head's S in registers for all of its
//    sequence's rows, so S is read and written once a batch; rows arrive through shared memory, a chunk ahead. Each
//    step reduces S k and S q at once over the old S: delta = b (v - g S k), o = g S q + (k.q) delta, S <- g S + k
//    delta. Further blocks of the same launch move the convolution's window on and write the tape.
#include "backend/gpu/device.cuh"
#include "backend/gpu/kernels.h"

namespace onebit::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kMostPerLane = 8;  // d_k, d_v up to 256

/// Where scratch holds what convolve made of a row; rows: n_tok of the batch, then n_tape of each sequence.
struct Scratch {
  float* c;      // [n_row, n_channel]: q and k normed, v
  float* gates;  // [n_row, n_v_head, 2]: decay, b
  float* kq;     // [n_row, n_k_head]
};

struct Net {
  DeltaNetParams params;
  DeltaMemory memory;
  DeltaNetCall call;
  BatchRows rows;
  Scratch scratch;

  __device__ int64_t tape_row(int sequence, int64_t i) const { return rows.n_tok + sequence * memory.n_tape + i; }
  /// Row e of a sequence's inputs: the window's rows are e < 0, the tape's rows to be applied come first.
  __device__ const float* input(const DeviceSequence& s, int64_t e) const {
    const int64_t n_channel = memory.shape.n_channel;
    if (e < 0) return memory.window(s.slot) + (memory.shape.n_tap - 1 + e) * n_channel;
    if (e < s.n_commit) return memory.tape(s.slot, e);
    return call.u + (s.row + e - s.n_commit) * n_channel;
  }
};

__device__ inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/// silu of the convolution of `d` channels from `first` on, lane l taking channels l, l + 32, ... kTaps: n_tap where it
/// is known, so that all of a lane's loads are under way at once; 0: any.
template <int kTaps>
__device__ void convolve_channels(const Net& net, const DeviceSequence& s, int64_t e, int64_t first, int d,
                                  float (&c)[kMostPerLane]) {
  const int n_tap = kTaps > 0 ? kTaps : static_cast<int>(net.params.n_tap), lane = threadIdx.x % kWarp;
  float sums[kMostPerLane] = {};
#pragma unroll(kTaps > 0 ? kTaps : 1)
  for (int m = 0; m < n_tap; ++m) {
    const float* u = net.input(s, e - (n_tap - 1) + m) + first;
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) {
      const int channel = lane + i * kWarp;
      if (channel < d) sums[i] += net.call.conv[(first + channel) * n_tap + m] * u[channel];
    }
  }
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) c[i] = lane + i * kWarp < d ? silu_of(sums[i]) : 0.0f;
}

__device__ inline float dot(const float (&a)[kMostPerLane], const float (&b)[kMostPerLane]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) sum = fmaf(a[i], b[i], sum);
  return warp_sum(sum);
}

__device__ inline void store_channels(const float (&c)[kMostPerLane], float* to, int d) {
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    const int channel = threadIdx.x % kWarp + i * kWarp;
    if (channel < d) to[channel] = c[i];
  }
}

/// Grid (row, units of kWarps warps); a warp a unit: key heads (q and k of one), then value heads.
template <int kTaps>
__global__ void convolve(Net net) {
  wait_for_previous();
  const DeltaNetParams& p = net.params;
  const int lane = threadIdx.x % kWarp, unit = blockIdx.y * kWarps + threadIdx.x / kWarp;
  const int n_k = static_cast<int>(p.n_k_head), n_v = static_cast<int>(p.n_v_head);
  const int d_k = static_cast<int>(p.d_k), d_v = static_cast<int>(p.d_v);
  if (unit >= n_k + n_v) return;
  const int64_t row = blockIdx.x;
  DeviceSequence s;
  int64_t e;  // index among the sequence's inputs
  const float *alpha, *beta;
  if (row < net.rows.n_tok) {
    s = net.rows.sequences[net.rows.row_sequence[row]];
    e = s.n_commit + row - s.row;
    beta = net.call.beta + row * n_v;
    alpha = net.call.alpha + row * n_v;
  } else {
    const int64_t tape = row - net.rows.n_tok;
    s = net.rows.sequences[tape / net.memory.n_tape];
    e = tape % net.memory.n_tape;
    if (e >= s.n_commit) return;
    beta = net.memory.tape(s.slot, e) + net.memory.shape.n_channel;
    alpha = beta + n_v;
  }
  float* to = net.scratch.c + row * net.memory.shape.n_channel;
  if (unit >= n_k) {
    const int head = unit - n_k;
    const int64_t first = 2 * n_k * d_k + static_cast<int64_t>(head) * d_v;
    float v[kMostPerLane];
    convolve_channels<kTaps>(net, s, e, first, d_v, v);
    store_channels(v, to + first, d_v);
    if (lane == 0) {
      float* gates = net.scratch.gates + (row * n_v + head) * 2;
      gates[0] = expf(net.call.a[head] * softplus(alpha[head] + net.call.dt[head]));
      gates[1] = sigmoid_of(beta[head]);
    }
    return;
  }
  const int64_t first = static_cast<int64_t>(unit) * d_k;
  float q[kMostPerLane], k[kMostPerLane];
  convolve_channels<kTaps>(net, s, e, first, d_k, q);
  convolve_channels<kTaps>(net, s, e, n_k * d_k + first, d_k, k);
  const float q_norm = sqrtf(dot(q, q) + p.eps), k_norm = sqrtf(dot(k, k) + p.eps);
  const float q_scale = 1 / sqrtf(static_cast<float>(d_k));
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    q[i] = q[i] / q_norm * q_scale;
    k[i] = k[i] / k_norm;
  }
  const float kq = dot(k, q);
  if (lane == 0) net.scratch.kq[row * n_k + unit] = kq;
  store_channels(q, to + first, d_k);
  store_channels(k, to + n_k * d_k + first, d_k);
}

/// kLanes lanes share a row of S, kColumns columns each; a warp has kRows x (32 / kLanes) rows.
template <int kLanes_, int kColumns_, int kRows_, bool kWhole_>
struct Shape {
  static constexpr int kLanes = kLanes_, kColumns = kColumns_, kRows = kRows_;
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
  static constexpr int kRowsOfBlock = kWarps * S::kRowsOfWarp, kColumns = S::kLanes * S::kColumns;
  static constexpr int kChunk = S::kWhole ? 16 : 4;  // rows
  struct alignas(16) Row {
    float q[kColumns], k[kColumns], v[kRowsOfBlock], gates[2], kq, unused;
  };
  Row rows[2][kChunk];

  /// Starts copying row `row` of scratch to `to`; all threads take part.
  __device__ static void start(const Net& net, int64_t row, int head, int key_head, int first_j, Row& to) {
    const DeltaNetParams& p = net.params;
    const int d_k = static_cast<int>(p.d_k), d_v = static_cast<int>(p.d_v), thread = threadIdx.x;
    const float* c = net.scratch.c + row * net.memory.shape.n_channel;
    const float *q = c + key_head * d_k, *k = c + (p.n_k_head + key_head) * d_k;
    const float* v = c + 2 * p.n_k_head * d_k + static_cast<int64_t>(head) * d_v + first_j;
    if constexpr (S::kWhole) {
      constexpr int kPieces = kColumns / 4, kValues = kRowsOfBlock / 4;
      static_assert(2 * kPieces + kValues + 2 <= kWarps * kWarp);
      if (thread < kPieces) {
        copy_async<16>(to.q + 4 * thread, q + 4 * thread);
      } else if (thread < 2 * kPieces) {
        copy_async<16>(to.k + 4 * (thread - kPieces), k + 4 * (thread - kPieces));
      } else if (thread < 2 * kPieces + kValues) {
        copy_async<16>(to.v + 4 * (thread - 2 * kPieces), v + 4 * (thread - 2 * kPieces));
      } else if (thread == 2 * kPieces + kValues) {
        copy_async<8>(to.gates, net.scratch.gates + (row * p.n_v_head + head) * 2);
      } else if (thread == 2 * kPieces + kValues + 1) {
        copy_async<4>(&to.kq, net.scratch.kq + row * p.n_k_head + key_head);
      }
    } else {
      for (int i = thread; i < kColumns; i += kWarps * kWarp) {
        to.q[i] = i < d_k ? q[i] : 0.0f;
        to.k[i] = i < d_k ? k[i] : 0.0f;
      }
      for (int i = thread; i < kRowsOfBlock; i += kWarps * kWarp) to.v[i] = first_j + i < d_v ? v[i] : 0.0f;
      if (thread < 2) to.gates[thread] = net.scratch.gates[(row * p.n_v_head + head) * 2 + thread];
      if (thread == 2) to.kq = net.scratch.kq[row * p.n_k_head + key_head];
    }
  }
  __device__ static StepInput<S> read(const Row& from, const int (&j)[S::kRows], int first_j, int lane) {
    StepInput<S> in;
    in.q.template load<true>(from.q, lane, kColumns);
    in.k.template load<true>(from.k, lane, kColumns);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) in.v[r] = from.v[j[r] - first_j];
    in.decay = from.gates[0];
    in.b = from.gates[1];
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
    float seen = 0, shown = 0;
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) {
      seen = fmaf(s[r].x[i], in.k.x[i], seen);
      shown = fmaf(s[r].x[i], in.q.x[i], shown);
    }
    seen = lanes_sum<S>(seen) * in.decay;
    shown = lanes_sum<S>(shown) * in.decay;
    const float delta = in.b * (in.v[r] - seen);
    o[r] = fmaf(in.kq, delta, shown);
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) s[r].x[i] = fmaf(s[r].x[i], in.decay, in.k.x[i] * delta);
  }
}

template <class S>
__device__ void advance_head(const Net& net, const DeviceSequence& s, int sequence, int head, int part,
                             Stage<S>& stage) {
  const DeltaNetParams& p = net.params;
  const int lane = threadIdx.x % S::kLanes, d_k = static_cast<int>(p.d_k), d_v = static_cast<int>(p.d_v);
  const int first_j = part * Stage<S>::kRowsOfBlock;
  const int key_head = static_cast<int>(p.map == HeadMap::tiled ? head % p.n_k_head : head / (p.n_v_head / p.n_k_head));
  int j[S::kRows];
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    j[r] = first_j + threadIdx.x / kWarp * S::kRowsOfWarp + r * (kWarp / S::kLanes) + threadIdx.x % kWarp / S::kLanes;
  }
  // S was last written by a kernel that ended before the one before this one began: it may come in early.
  float* matrix = net.memory.matrix(s.slot, head);
  Vector<S> state[S::kRows];
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    if (S::kWhole || j[r] < d_v) {
      state[r].load(matrix + static_cast<int64_t>(j[r]) * d_k, lane, d_k);
    } else {
      for (float& x : state[r].x) x = 0;
    }
  }
  const auto save = [&] {
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      if (S::kWhole || j[r] < d_v) state[r].store(matrix + static_cast<int64_t>(j[r]) * d_k, lane, d_k);
    }
  };
  wait_for_previous();
  const int n_step = s.n_commit + s.n_tok, n_chunk = (n_step + Stage<S>::kChunk - 1) / Stage<S>::kChunk;
  const auto bring = [&](int chunk) {
    for (int i = chunk * Stage<S>::kChunk; i < min((chunk + 1) * Stage<S>::kChunk, n_step); ++i) {
      const int64_t row = i < s.n_commit ? net.tape_row(sequence, i) : s.row + i - s.n_commit;
      stage.start(net, row, head, key_head, first_j, stage.rows[chunk % 2][i % Stage<S>::kChunk]);
    }
    commit_async();
  };
  bring(0);
  bring(1);
  for (int chunk = 0; chunk < n_chunk; ++chunk) {
    wait_async<1>();
    __syncthreads();
    const typename Stage<S>::Row* rows = stage.rows[chunk % 2];
    const int begin = chunk * Stage<S>::kChunk, n = min(n_step - begin, Stage<S>::kChunk);
    StepInput<S> next = Stage<S>::read(rows[0], j, first_j, lane);
    for (int i = 0; i < n; ++i) {
      const StepInput<S> in = next;
      if (i + 1 < n) next = Stage<S>::read(rows[i + 1], j, first_j, lane);
      float o[S::kRows];
      step<S>(state, in, o);
      const int at = begin + i - s.n_commit;
      if (at == -1 && s.verify) save();
      if (at < 0) continue;
#pragma unroll
      for (int r = 0; r < S::kRows; ++r) {
        if (lane == 0 && (S::kWhole || j[r] < d_v)) net.call.y[((s.row + at) * p.n_v_head + head) * d_v + j[r]] = o[r];
      }
    }
    __syncthreads();
    bring(chunk + 2);
  }
  if (!s.verify) save();
}

/// Moves the window past the applied rows, and past the batch's unless they are under test; those go to the tape.
__device__ void advance_inputs(const Net& net, const DeviceSequence& s, int64_t channel) {
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
  for (int64_t i = 0; i < s.n_tok; ++i) {
    const int64_t row = s.row + i;
    float* tape = net.memory.tape(s.slot, i) + channel;
    if (channel < n_channel) {
      *tape = net.call.u[row * n_channel + channel];
    } else if (channel < n_channel + n_v) {
      *tape = net.call.beta[row * n_v + channel - n_channel];
    } else {
      *tape = net.call.alpha[row * n_v + channel - n_channel - n_v];
    }
  }
}

/// Grid (sequence, n_v_head * parts + blocks for the inputs).
template <class S>
__global__ void __launch_bounds__(kWarps* kWarp) advance(Net net, int parts) {
  __shared__ Stage<S> stage;
  const DeviceSequence s = net.rows.sequences[blockIdx.x];  // batches are written before any kernel of theirs
  const int n_head_blocks = static_cast<int>(net.params.n_v_head) * parts, block = blockIdx.y;
  if (block < n_head_blocks) {
    advance_head<S>(net, s, blockIdx.x, block / parts, block % parts, stage);
  } else {
    wait_for_previous();
    advance_inputs(net, s, static_cast<int64_t>(block - n_head_blocks) * kWarps * kWarp + threadIdx.x);
  }
}

template <class S>
void run_advance(const Net& net, gpuStream_t stream) {
  const unsigned parts = blocks_for(net.params.d_v, kWarps * S::kRowsOfWarp);
  const unsigned inputs = blocks_for(net.memory.tape_row_floats(), kWarps * kWarp);
  launch(advance<S>,
         dim3(static_cast<unsigned>(net.rows.n_sequence), static_cast<unsigned>(net.params.n_v_head) * parts + inputs),
         dim3(kWarps * kWarp), 0, stream, net, static_cast<int>(parts));
}

int64_t scratch_rows(const DeltaMemory& memory, int64_t n_tok) {
  return n_tok + std::min(memory.n_slots, n_tok) * memory.n_tape;  // a slot occurs once in a batch
}

}  // namespace

bool delta_net_fits(const DeltaNetParams& params) {
  return params.d_k <= kMostPerLane * kWarp && params.d_v <= kMostPerLane * kWarp;
}

int64_t delta_net_scratch_bytes(const DeltaNetParams& params, const DeltaMemory& memory, int64_t max_tok) {
  return scratch_rows(memory, max_tok) * (memory.shape.n_channel + 2 * params.n_v_head + params.n_k_head) * 4;
}

void delta_net(const DeltaNetCall& call, const DeltaNetParams& params, const BatchRows& rows, const DeltaMemory& memory,
               gpuStream_t stream) {
  if (rows.n_tok == 0) return;
  const int64_t n_row = rows.n_tok + static_cast<int64_t>(rows.n_sequence) * memory.n_tape;
  Net net{params, memory, call, rows, {}};
  net.scratch.c = call.scratch;
  net.scratch.gates = net.scratch.c + n_row * memory.shape.n_channel;
  net.scratch.kq = net.scratch.gates + n_row * params.n_v_head * 2;
  launch(params.n_tap == 4 ? convolve<4> : convolve<0>,
         dim3(static_cast<unsigned>(n_row), blocks_for(params.n_k_head + params.n_v_head, kWarps)),
         dim3(kWarps * kWarp), 0, stream, net);
  if (params.d_k == 128 && params.d_v % 32 == 0) {
    run_advance<Shape<8, 16, 2, true>>(net, stream);
  } else if (params.d_k <= 128) {
    run_advance<Shape<32, 4, 2, false>>(net, stream);
  } else {
    run_advance<Shape<32, 8, 2, false>>(net, stream);
  }
}

}  // namespace onebit::gpu
