// The gated delta net in two launches, or at decoding in one: then each block of advance makes the rows it needs, and
// the last one that reads a window moves it on.
//
// 1. convolve: for every row (and every tape row that is to be applied) the convolution, SiLU, the norms of q and k,
//    k.q and the gates go to scratch. Bytes: u once, scratch once.
// 2. advance: the delta rule, one row after another. A warp keeps 8 rows of a head's S in registers for all of its
//    sequence's rows, so S is read and written once a batch; rows arrive through shared memory, a chunk ahead. Each
//    step reduces S k and S q at once over the old S: delta = b (v - g S k), o = g S q + (k.q) delta, S <- g S + k
//    delta. Further blocks of the same launch move the convolution's window on and write the tape.
#include "backend/gpu/delta_net_rule.cuh"

namespace onebit::gpu {
namespace {

constexpr int kWarps = 4;        // of convolve
constexpr int kMostPerLane = 8;  // d_k, d_v up to 256

/// Grid (row, units of kWarps warps); a warp a unit: key heads (q and k of one), then value heads.
template <int kTaps>
__global__ void convolve(DeltaNet net) {
  wait_for_previous();
  const DeltaNetParams& p = net.params;
  const int lane = threadIdx.x % kWarp, unit = blockIdx.y * kWarps + threadIdx.x / kWarp;
  const int n_k = static_cast<int>(p.n_k_head), n_v = static_cast<int>(p.n_v_head);
  const int d_k = static_cast<int>(p.d_k), d_v = static_cast<int>(p.d_v);
  if (unit >= n_k + n_v) return;
  const int64_t row = blockIdx.x;
  DeviceSequence s;
  int64_t e;  // index among the sequence's inputs
  if (row < net.rows.n_tok) {
    s = net.rows.sequences[net.rows.row_sequence[row]];
    e = s.n_commit + row - s.row;
  } else {
    const int64_t tape = row - net.rows.n_tok;
    s = net.rows.sequences[tape / net.memory.n_tape];
    e = tape % net.memory.n_tape;
    if (e >= s.n_commit) return;
  }
  float* to = net.scratch.c + row * net.memory.shape.n_channel;
  if (unit >= n_k) {
    const int head = unit - n_k;
    const int64_t first = 2 * n_k * d_k + static_cast<int64_t>(head) * d_v;
    float v[kMostPerLane];
    convolve_channels<kTaps>(net, s, e, first, d_v, v);
    store_channels(v, to + first, d_v);
    if (lane == 0) reinterpret_cast<float2*>(net.scratch.gates)[row * n_v + head] = gates_at(net, s, e, head);
    return;
  }
  float q[kMostPerLane], k[kMostPerLane];
  const float kq = convolve_key_head<kTaps>(net, s, e, unit, q, k);
  if (lane == 0) net.scratch.kq[row * n_k + unit] = kq;
  store_channels(q, to + unit * d_k, d_k);
  store_channels(k, to + (n_k + unit) * d_k, d_k);
}

/// Which key head a value head uses, and value head j of those that use a key head.
__device__ inline int key_head_of(const DeltaNetParams& p, int head) {
  return static_cast<int>(p.map == HeadMap::tiled ? head % p.n_k_head : head / (p.n_v_head / p.n_k_head));
}
__device__ inline int value_head_of(const DeltaNetParams& p, int key_head, int j) {
  return static_cast<int>(p.map == HeadMap::tiled ? key_head + j * p.n_k_head
                                                  : key_head * (p.n_v_head / p.n_k_head) + j);
}

/// Few rows are made by the blocks that use them, 8 warps: three make q, three k, one v, one the gates. A lane has
/// channels lane, lane + 32, ... of its vector.
template <class S, int kTaps>
struct RowMaker {
  static constexpr int kPerLane = S::kLanes * S::kColumns / kWarp, kBefore = kTaps - 1, kSharers = 3;
  static_assert(S::kWarps == 2 * kSharers + 2 && Stage<S>::kRowsOfBlock == kWarp);
  const DeltaNet& net;
  const DeviceSequence& s;
  int warp, lane, first;  // first channel of the warp's vector
  float taps[kPerLane][kTaps];

  /// Weights, and what earlier runs left, come while the kernel before ends.
  __device__ RowMaker(const DeltaNet& net, const DeviceSequence& s, int head, int key_head, int first_j)
      : net(net), s(s), warp(threadIdx.x / kWarp), lane(threadIdx.x % kWarp) {
    const int d_k = static_cast<int>(net.params.d_k), n_k = static_cast<int>(net.params.n_k_head);
    const bool whole = warp < 2 * kSharers;
    first = whole ? (warp / kSharers * n_k + key_head) * d_k
                  : 2 * n_k * d_k + head * static_cast<int>(net.params.d_v) + first_j;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int channel = first + lane + (whole ? i * kWarp : 0);
      const float4 four = reinterpret_cast<const float4*>(net.call.conv)[channel];
      static_assert(kTaps == 4);
      taps[i][0] = four.x, taps[i][1] = four.y, taps[i][2] = four.z, taps[i][3] = four.w;
      for (int m = 0; m < kBefore; ++m) prefetch(net.memory.window(s.slot) + m * net.memory.shape.n_channel + channel);
    }
  }
  /// Rows [0, n) of the sequence's inputs, those of the tape first.
  __device__ void make(int n, int head, Stage<S>& stage) const {
    if (warp == 2 * kSharers + 1) {
      if (lane < n) stage.row(lane).gates = gates_at(net, s, lane, head);
    } else if (warp == 2 * kSharers) {
      n == 1 ? make_rows<1, 1>(0, 1, n, stage) : make_rows<1, 8>(0, 1, n, stage);
    } else {
      n == 1 ? make_rows<kPerLane, 1>(warp % kSharers, kSharers, n, stage)
             : make_rows<kPerLane, 4>(warp % kSharers, kSharers, n, stage);
    }
  }
  /// k.q of all rows, once they are there.
  __device__ void multiply(int n, Stage<S>& stage) const {
    for (int e = warp; e < n; e += S::kWarps) {
      float q[kPerLane], k[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        q[i] = stage.row(e).q[lane + i * kWarp];
        k[i] = stage.row(e).k[lane + i * kWarp];
      }
      const float kq = dot(k, q);
      if (lane == 0) stage.row(e).kq = kq;
    }
  }

 private:
  /// Rows begin, begin + stride, ..., kAtOnce of them at once, so that their latencies overlap.
  template <int kPer, int kAtOnce>
  __device__ void make_rows(int begin, int stride, int n, Stage<S>& stage) const {
    for (int row = begin; row < n; row += stride * kAtOnce) {
      float u[kAtOnce][kTaps][kPer];
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) {
#pragma unroll
        for (int m = 0; m < kTaps; ++m) {
          const float* from = net.input(s, min(row + a * stride, n - 1) - kBefore + m) + first + lane;
#pragma unroll
          for (int i = 0; i < kPer; ++i) u[a][m][i] = from[i * kWarp];
        }
      }
#pragma unroll
      for (int a = 0; a < kAtOnce; ++a) {
        if (row + a * stride < n) make_row<kPer>(u[a], stage.row(row + a * stride));
      }
    }
  }
  template <int kPer>
  __device__ void make_row(const float (&u)[kTaps][kPer], typename Stage<S>::Row& to) const {
    float c[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      float sum = 0;
#pragma unroll
      for (int m = 0; m < kTaps; ++m) sum += taps[i][m] * u[m][i];
      c[i] = silu_of(sum);
    }
    if constexpr (kPer == 1) {
      to.v[lane] = c[0];
    } else {
      const bool is_q = warp < kSharers;
      const float norm = sqrtf(dot(c, c) + net.params.eps);
      const float scale = is_q ? 1 / sqrtf(static_cast<float>(net.params.d_k)) : 1.0f;
      float* vector = is_q ? to.q : to.k;
#pragma unroll
      for (int i = 0; i < kPer; ++i) vector[lane + i * kWarp] = c[i] / norm * scale;
    }
  }
};

/// The inputs move on once all blocks that read them have: of v this block alone, of q, k and the gates the blocks of
/// all heads that use the key head. `last`: this is the last of these.
template <class S>
__device__ void move_on(const DeltaNet& net, const DeviceSequence& s, int head, int key_head, int first_j, bool last) {
  const DeltaNetParams& p = net.params;
  const int thread = threadIdx.x, per_key = static_cast<int>(p.n_v_head / p.n_k_head);
  if (thread < Stage<S>::kRowsOfBlock) {
    advance_inputs(net, s, 2 * p.n_k_head * p.d_k + static_cast<int64_t>(head) * p.d_v + first_j + thread);
  }
  if (!last) return;
  for (int i = thread; i < 2 * p.d_k; i += S::kWarps * kWarp) {
    advance_inputs(net, s, (i / p.d_k * p.n_k_head + key_head) * p.d_k + i % p.d_k);
  }
  if (thread < 2 * per_key) {
    advance_inputs(
        net, s,
        net.memory.shape.n_channel + thread / per_key * p.n_v_head + value_head_of(p, key_head, thread % per_key));
  }
}

/// kTaps > 0: rows are made here (at most two chunks), not by convolve.
template <class S, int kTaps>
__device__ void advance_head(const DeltaNet& net, const DeviceSequence& s, int sequence, int head, int part, int parts,
                             Stage<S>& stage) {
  const DeltaNetParams& p = net.params;
  const int lane = threadIdx.x % S::kLanes, d_k = static_cast<int>(p.d_k), d_v = static_cast<int>(p.d_v);
  const int first_j = part * Stage<S>::kRowsOfBlock;
  const int key_head = key_head_of(p, head);
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
  const int n_step = s.n_commit + s.n_tok;
  const auto run = [&](int begin, int n) {
    const typename Stage<S>::Row* rows = &stage.row(begin);
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
  };
  if constexpr (kTaps > 0) {
    RowMaker<S, kTaps> maker(net, s, head, key_head, first_j);
    wait_for_previous();
    maker.make(n_step, head, stage);
    __syncthreads();
    maker.multiply(n_step, stage);
    // Blocks of all heads that use the key head read its inputs: the last of them moves them on.
    int32_t* counter = net.counters + sequence * p.n_k_head + key_head;
    const int readers = static_cast<int>(p.n_v_head / p.n_k_head) * parts;
    if (threadIdx.x == 0) {
      stage.last = atomicAdd(counter, 1) == readers - 1;
      if (stage.last) *counter = 0;
    }
    __syncthreads();
    for (int begin = 0; begin < n_step; begin += Stage<S>::kChunk) run(begin, min(n_step - begin, Stage<S>::kChunk));
    if (!s.verify) save();
    move_on<S>(net, s, head, key_head, first_j, stage.last);
  } else {
    wait_for_previous();
    const int n_chunk = (n_step + Stage<S>::kChunk - 1) / Stage<S>::kChunk;
    const auto bring = [&](int chunk) {
      for (int i = chunk * Stage<S>::kChunk; i < min((chunk + 1) * Stage<S>::kChunk, n_step); ++i) {
        const int64_t row = i < s.n_commit ? net.tape_row(sequence, i) : s.row + i - s.n_commit;
        stage.start(net, row, head, key_head, first_j, stage.row(i));
      }
      commit_async();
    };
    bring(0);
    bring(1);
    for (int chunk = 0; chunk < n_chunk; ++chunk) {
      wait_async<1>();
      __syncthreads();
      const int begin = chunk * Stage<S>::kChunk;
      run(begin, min(n_step - begin, Stage<S>::kChunk));
      __syncthreads();
      bring(chunk + 2);
    }
    if (!s.verify) save();
  }
}

/// Grid (sequence, n_v_head * parts, and without kTaps blocks for the inputs).
template <class S, int kTaps>
__global__ void __launch_bounds__(S::kWarps* kWarp) advance(DeltaNet net, int parts) {
  __shared__ Stage<S> stage;
  const DeviceSequence s = net.rows.sequences[blockIdx.x];  // batches are written before any kernel of theirs
  const int n_head_blocks = static_cast<int>(net.params.n_v_head) * parts, block = blockIdx.y;
  if (block < n_head_blocks) {
    advance_head<S, kTaps>(net, s, blockIdx.x, block / parts, block % parts, parts, stage);
  } else {
    wait_for_previous();
    advance_inputs(net, s, static_cast<int64_t>(block - n_head_blocks) * S::kWarps * kWarp + threadIdx.x);
  }
}

template <class S, int kTaps>
void run_advance(const DeltaNet& net, gpuStream_t stream) {
  const unsigned parts = blocks_for(net.params.d_v, S::kWarps * S::kRowsOfWarp);
  const unsigned inputs = kTaps > 0 ? 0 : blocks_for(net.memory.tape_row_floats(), S::kWarps * kWarp);
  launch(advance<S, kTaps>,
         dim3(static_cast<unsigned>(net.rows.n_sequence), static_cast<unsigned>(net.params.n_v_head) * parts + inputs),
         dim3(S::kWarps * kWarp), 0, stream, net, static_cast<int>(parts));
}

using WholeShape = Shape<8, 16, 2, true>;
using FewRowsShape = Shape<8, 16, 1, true, 8>;
bool is_whole(const DeltaNetParams& params) { return params.d_k == 128 && params.d_v % 32 == 0; }

/// Whether advance makes the rows itself: a row a sequence (with more, doing it once a key head costs less), and room
/// for those of its tape.
bool few_rows(const DeltaNetParams& params, const DeltaMemory& memory, const BatchRows& rows) {
  return is_whole(params) && params.n_tap == 4 && rows.n_tok == rows.n_sequence &&
         1 + memory.n_tape <= 2 * Stage<FewRowsShape>::kChunk;
}

int64_t scratch_rows(const DeltaMemory& memory, int64_t n_tok) {
  return n_tok + std::min(memory.n_slots, n_tok) * memory.n_tape;  // a slot occurs once in a batch
}

}  // namespace

bool delta_net_fits(const DeltaNetParams& params) {
  return params.d_k <= kMostPerLane * kWarp && params.d_v <= kMostPerLane * kWarp;
}

int64_t delta_net_scratch_bytes(const DeltaNetParams& params, const DeltaMemory& memory, int64_t max_tok) {
  return scratch_rows(memory, max_tok) * (memory.shape.n_channel + 2 * params.n_v_head + params.n_k_head) * 4 + 4;
}

void delta_net(const DeltaNetCall& call, const DeltaNetParams& params, const BatchRows& rows, const DeltaMemory& memory,
               gpuStream_t stream) {
  if (rows.n_tok == 0) return;
  const int64_t n_row = rows.n_tok + static_cast<int64_t>(rows.n_sequence) * memory.n_tape;
  DeltaNet net{params, memory, call, rows, {}, call.counters};
  net.scratch.c = call.scratch;
  net.scratch.gates = net.scratch.c + (n_row * memory.shape.n_channel + 1) / 2 * 2;  // pairs are read at once
  net.scratch.kq = net.scratch.gates + n_row * params.n_v_head * 2;
  if (few_rows(params, memory, rows)) return run_advance<FewRowsShape, 4>(net, stream);
  launch(params.n_tap == 4 ? convolve<4> : convolve<0>,
         dim3(static_cast<unsigned>(n_row), blocks_for(params.n_k_head + params.n_v_head, kWarps)),
         dim3(kWarps * kWarp), 0, stream, net);
  if (is_whole(params)) {
    run_advance<WholeShape, 0>(net, stream);
  } else if (params.d_k <= 128) {
    run_advance<Shape<32, 4, 2, false>, 0>(net, stream);
  } else {
    run_advance<Shape<32, 8, 2, false>, 0>(net, stream);
  }
}

}  // namespace onebit::gpu
