#include <utility>

#include "backend/gpu/device.cuh"
#include "backend/gpu/kernels.h"
#include "base/gumbel.h"

namespace onebit::gpu {
namespace {

using Key = unsigned long long;

/// Orders columns as backend/ref/select.cpp does: larger value first, lower column first among equals, NaN as
/// -infinity, both zeros equal. A larger key comes first; 0 is below every key.
__device__ inline Key key_of(float x, uint32_t column) {
  if (isnan(x)) x = -INFINITY;
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | (0xffffffffu - column);
}
__device__ inline uint32_t column_of(Key key) { return 0xffffffffu - static_cast<uint32_t>(key); }

__device__ inline Key warp_largest(Key key) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const Key other = shfl_xor(key, mask);
    if (other > key) key = other;
  }
  return key;
}

constexpr int kThreads = 256;
constexpr int kPerThread = 16;
constexpr int kChunk = kThreads * kPerThread;  // keys that one block chooses among

/// Writes the k largest of the block's keys, largest first, to `best`; keys it does not have are 0.
__device__ void choose(Key (&keys)[kPerThread], int k, Key* best) {
  __shared__ Key shared[2][kThreads / kWarp];
  Key own = 0;  // largest of this thread's
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) own = keys[i] > own ? keys[i] : own;
  for (int j = 0; j < k; ++j) {
    const Key warp_best = warp_largest(own);
    if (threadIdx.x % kWarp == 0) shared[j % 2][threadIdx.x / kWarp] = warp_best;
    __syncthreads();
    Key winner = 0;
#pragma unroll
    for (int w = 0; w < kThreads / kWarp; ++w) winner = shared[j % 2][w] > winner ? shared[j % 2][w] : winner;
    if (threadIdx.x == 0) best[j] = winner;
    if (winner != 0 && winner == own) {  // keys are unique, so one thread takes its own out
      own = 0;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if (keys[i] == winner) keys[i] = 0;
        own = keys[i] > own ? keys[i] : own;
      }
    }
  }
}

/// First pass: block (row, chunk) leaves the k largest of its columns.
__global__ void choose_columns(const float* x, int64_t width, int k, Key* best) {
  wait_for_previous();
  const float* row = x + blockIdx.x * width;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kChunk;
  Key keys[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t c = first + i * kThreads + threadIdx.x;
    keys[i] = c < width ? key_of(row[c], static_cast<uint32_t>(c)) : 0;
  }
  choose(keys, k, best + (static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * k);
}

/// Further passes: `n` keys of each row become k for every chunk of them.
__global__ void choose_keys(const Key* from, int64_t n, int k, Key* best) {
  wait_for_previous();
  const Key* row = from + blockIdx.x * n;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kChunk;
  Key keys[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t c = first + i * kThreads + threadIdx.x;
    keys[i] = c < n ? row[c] : 0;
  }
  choose(keys, k, best + (static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * k);
}

/// Last pass: a row's `n` keys, at most a chunk, become its columns and their values.
__global__ void choose_last(const Key* from, int64_t n, const float* x, int64_t width, int k, Key* best, int32_t* ids,
                            float* values) {
  wait_for_previous();
  const int64_t r = blockIdx.x;
  Key keys[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t c = i * kThreads + threadIdx.x;
    keys[i] = c < n ? from[r * n + c] : 0;
  }
  choose(keys, k, best + r * k);
  __syncthreads();
  for (int j = threadIdx.x; j < k; j += kThreads) {
    const uint32_t column = column_of(best[r * k + j]);
    ids[r * k + j] = static_cast<int32_t>(column);
    if (values) values[r * k + j] = x[r * width + column];
  }
}

int64_t chunks(int64_t n) { return (n + kChunk - 1) / kChunk; }

/// k above half a chunk would not shrink from pass to pass: each row is sorted by counting instead.
bool by_chunks(int64_t width, int32_t k) { return width <= kChunk || k <= kChunk / 2; }

/// The place of a column is the number of columns before it; quadratic, for k that no model asks for.
__global__ void choose_by_counting(const float* x, int64_t width, int k, int32_t* ids, float* values) {
  wait_for_previous();
  const int64_t r = blockIdx.x;
  const float* row = x + r * width;
  for (int64_t c = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; c < width;
       c += static_cast<int64_t>(gridDim.y) * blockDim.x) {
    const Key key = key_of(row[c], static_cast<uint32_t>(c));
    int64_t place = 0;
    for (int64_t i = 0; i < width; ++i) place += key_of(row[i], static_cast<uint32_t>(i)) > key;
    if (place >= k) continue;
    ids[r * k + place] = static_cast<int32_t>(c);
    if (values) values[r * k + place] = row[c];
  }
}

// --- experts ---------------------------------------------------------------------------------------------------------

/// One warp a row, kPerLane logits a lane. n_used rounds of a warp's maximum.
template <int kPerLane>
__global__ void route_rows(const float* logits, int32_t* ids, float* weights, int64_t n_row, int n_expert,
                           RouteParams params) {
  wait_for_previous();
  const int lane = threadIdx.x % kWarp;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (r >= n_row) return;
  const float* x = logits + r * n_expert;
  const bool softmax = params.gate == RouterGate::softmax;
  Key keys[kPerLane];
  float values[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * kWarp;
    values[i] = e < n_expert ? x[e] : -INFINITY;
    keys[i] = e < n_expert ? key_of(values[i], static_cast<uint32_t>(e)) : 0;
  }
  float peak = 0, total = 0, sum = 0, mine = 0;  // mine: of lane j, the weight of choice j
  int chosen = 0;
  for (int j = 0; j < params.n_used; ++j) {
    Key best = 0;
    float value = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        value = values[i];
      }
    }
    const Key own = best;
    best = warp_largest(best);
    value = shfl(value, static_cast<int>(column_of(best)) % kWarp);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (own == best && keys[i] == best) keys[i] = 0;  // keys are unique
    }
    if (j == 0 && softmax) {
      peak = value;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (lane + i * kWarp < n_expert) total += expf(values[i] - peak);
      }
      total = warp_sum(total);
    }
    const float p = softmax ? expf(value - peak) / total : sigmoid_of(value);
    sum += p;
    if (lane == j % kWarp) {
      mine = p;
      chosen = static_cast<int>(column_of(best));
    }
    if (j % kWarp == kWarp - 1 || j + 1 == params.n_used) {
      const int at = j / kWarp * kWarp + lane;
      if (at <= j) {
        ids[r * params.n_used + at] = chosen;
        weights[r * params.n_used + at] = mine;
      }
    }
  }
  const float divisor = params.normalise ? fmaxf(sum, 0x1p-14f) : 1.0f;
  if (params.n_used <= kWarp) {
    if (lane < params.n_used) weights[r * params.n_used + lane] = mine / divisor * params.scale;
    return;
  }
  sync_warp();
  for (int j = lane; j < params.n_used; j += kWarp) {
    float& weight = weights[r * params.n_used + j];
    weight = weight / divisor * params.scale;
  }
}

// --- the drafter's selector ------------------------------------------------------------------------------------------

/// gumbel() of base/gumbel.h.
__device__ double gumbel_noise(uint64_t seed, int64_t draw, int32_t id) {
  return -log(-log((static_cast<double>(noise_bits(seed, draw, id) >> 11) + 0.5) * 0x1p-53));
}

/// One block a sequence; it walks the sequence's output rows in order, a warp a candidate. Work: k * rank multiplies a
/// row, all operands from cache.
__global__ void walk(WalkCall call, int64_t n_row, int k, int rank, BatchRows rows, RowMap map) {
  wait_for_previous();
  __shared__ int chosen;
  const int sequence = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int n_warp = blockDim.x / kWarp;
  const DeviceSequence& from = rows.sequences[sequence];
  int64_t predecessor = sequence, draw = from.draw;  // row of call.predecessors
  for (int64_t r = 0; r < n_row; ++r) {
    if (rows.row_sequence[map.token(r)] != sequence) continue;
    const float* a = call.predecessors + predecessor * rank;
    const float* gamma = call.gamma + r * rank;
    float* scores = call.scores + r * k;
    for (int j = warp; j < k; j += n_warp) {
      const float* b = call.successors + (r * k + j) * rank;
      float sum = 0;
      for (int i = lane; i < rank; i += kWarp) sum = fmaf(a[i] * gamma[i], b[i], sum);
      sum = warp_sum(sum);
      if (lane != 0) continue;
      float score = call.unary[r * k + j] + sum;
      if (from.temperature > 0) {
        score += from.temperature * static_cast<float>(gumbel_noise(from.seed, draw, call.candidates[r * k + j]));
      }
      scores[j] = score;
    }
    __syncthreads();
    if (warp == 0) {
      Key best = 0;
      for (int j = lane; j < k; j += kWarp) {
        const Key key = key_of(scores[j], static_cast<uint32_t>(j));
        if (key > best) best = key;
      }
      const int winner = static_cast<int>(column_of(warp_largest(best)));
      float total = 0;
      for (int j = lane; j < k; j += kWarp) total += expf(scores[j] - scores[winner]);
      total = warp_sum(total);
      if (lane == 0) {
        chosen = winner;
        call.ids[r] = call.candidates[r * k + winner];
        call.confidence[r] = 1 / total;
      }
    }
    __syncthreads();
    predecessor = rows.n_sequence + r * k + chosen;
    ++draw;
    __syncthreads();  // before `chosen` is written again
  }
}

__global__ void collect_walk_ids(BatchRows rows, const int32_t* candidates, int64_t n, int32_t* ids) {
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < rows.n_sequence) {
    ids[i] = rows.tokens[rows.sequences[i].row];
  } else if (i < rows.n_sequence + n) {
    ids[i] = candidates[i - rows.n_sequence];
  }
}

}  // namespace

int64_t top_k_scratch_bytes(int64_t max_rows, int64_t width, int32_t k) {
  if (!by_chunks(width, k)) return 0;
  // Two buffers in turn: the second pass's keys are at most as many as the first's.
  return 2 * max_rows * chunks(width) * k * static_cast<int64_t>(sizeof(Key));
}

void top_k(const float* x, int64_t n_row, int64_t width, int32_t k, int32_t* ids, float* values, uint8_t* scratch,
           gpuStream_t stream) {
  if (n_row == 0) return;
  const auto n = static_cast<unsigned>(n_row);
  if (!by_chunks(width, k)) {
    launch(choose_by_counting, dim3(n, 64), dim3(kThreads), 0, stream, x, width, k, ids, values);
    return;
  }
  Key* from = reinterpret_cast<Key*>(scratch);
  Key* to = from + n_row * chunks(width) * k;
  launch(choose_columns, dim3(n, static_cast<unsigned>(chunks(width))), dim3(kThreads), 0, stream, x, width, k, from);
  int64_t left = chunks(width) * k;
  for (; left > kChunk; left = chunks(left) * k) {
    launch(choose_keys, dim3(n, static_cast<unsigned>(chunks(left))), dim3(kThreads), 0, stream, from, left, k, to);
    std::swap(from, to);
  }
  launch(choose_last, dim3(n), dim3(kThreads), 0, stream, from, left, x, width, k, to, ids, values);
}

void route(const float* logits, int32_t* ids, float* weights, int64_t n_row, int64_t n_expert,
           const RouteParams& params, gpuStream_t stream) {
  if (n_row == 0) return;
  constexpr int kRows = 4, kMost = 64;
  check(n_expert <= kMost * kWarp ? gpuSuccess : ONEBIT_GPU(ErrorInvalidConfiguration), "choosing among experts");
  const auto kernel = n_expert <= 4 * kWarp    ? route_rows<4>
                      : n_expert <= 16 * kWarp ? route_rows<16>
                                               : route_rows<kMost>;
  launch(kernel, dim3(blocks_for(n_row, kRows)), dim3(kRows * kWarp), 0, stream, logits, ids, weights, n_row,
         static_cast<int>(n_expert), params);
}

void walk_ids(const BatchRows& rows, const int32_t* candidates, int64_t n, int32_t* ids, gpuStream_t stream) {
  if (n == 0) return;
  launch(collect_walk_ids, dim3(blocks_for(rows.n_sequence + n, kThreads)), dim3(kThreads), 0, stream, rows, candidates,
         n, ids);
}

void select_walk(const WalkCall& call, int64_t n_row, int64_t k, int64_t rank, const BatchRows& rows, const RowMap& map,
                 gpuStream_t stream) {
  if (n_row == 0) return;
  launch(walk, dim3(static_cast<unsigned>(rows.n_sequence)), dim3(512), 0, stream, call, n_row, static_cast<int>(k),
         static_cast<int>(rank), rows, map);
}

}  // namespace onebit::gpu
