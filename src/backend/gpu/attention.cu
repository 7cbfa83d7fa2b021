#include "backend/gpu/attention.h"
#include "backend/gpu/device.cuh"

namespace onebit::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kPage = static_cast<int>(kPageTokens);
constexpr int kMostColumns = 8;  // per thread: d_head up to 1024

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline void narrow(float x, float* to) { *to = x; }
__device__ inline void narrow(float x, __half* to) { *to = __float2half_rn(x); }

/// One block a token row. Keys are written in order; values one element a cache line when decoding, and a line of
/// neighbouring positions is completed by neighbouring blocks when a prompt is read.
template <class T>
__global__ void store(const float* k, const float* v, BatchRows rows, KvMemory memory) {
  wait_for_previous();
  const int r = blockIdx.x;
  const DeviceSequence& s = rows.sequences[rows.row_sequence[r]];
  const int pos = rows.row_pos[r], d = static_cast<int>(memory.d_head);
  const int page = rows.pages[s.first_page + pos / kPage], at = pos % kPage;
  const int width = static_cast<int>(memory.n_head_kv) * d;
  T* keys = reinterpret_cast<T*>(memory.keys) + static_cast<int64_t>(page) * kPage * width;
  T* values = reinterpret_cast<T*>(memory.values) + static_cast<int64_t>(page) * kPage * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const int64_t from = static_cast<int64_t>(r) * width + i;
    narrow(k[from], keys + (i / d * kPage + at) * static_cast<int64_t>(d) + i % d);
    narrow(v[from], values + static_cast<int64_t>(i) * kPage + at);
  }
}

/// Softmax over keys that arrive in tiles, for one query: the running peak and sum, a column of the result a thread.
struct Running {
  float peak = -INFINITY, sum = 0;
  float y[kMostColumns] = {};

  /// scores [n] in shared memory become weights; returns the factor that earlier results shrink by.
  __device__ float take_scores(float* scores, int n) {
    float top = peak;
    for (int i = 0; i < n; ++i) top = fmaxf(top, scores[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kThreads) scores[i] = expf(scores[i] - top);
    __syncthreads();
    const float shrink = expf(peak - top);
    sum *= shrink;
    for (int i = 0; i < n; ++i) sum += scores[i];
    peak = top;
    return shrink;
  }
};

/// One block of threads a (row, head): any head size, any cache type, any row order; each query reads its keys by
/// itself, so the bytes are those of the cache times rows times heads per key head.
template <class T>
__global__ void attend(AttentionCall call, AttentionParams params, BatchRows rows, KvMemory memory) {
  wait_for_previous();
  __shared__ float scores[kPage];
  GPU_DYNAMIC_SHARED(float, query);
  const int64_t r = blockIdx.x;
  const int head = blockIdx.y, d = static_cast<int>(params.d_head);
  const int kv_head = head / static_cast<int>(params.n_head / params.n_head_kv);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int token = call.map.token(r);
  const DeviceSequence s = rows.sequences[rows.row_sequence[token]];
  const int pos = rows.row_pos[token], window = static_cast<int>(params.window);
  const int end = call.k ? s.pos : pos + 1;
  int first = window > 0 ? max(0, pos - window + 1) : 0;
  while (first < end && rows.pages[s.first_page + first / kPage] < 0) first = (first / kPage + 1) * kPage;
  const int64_t width = params.n_head * params.d_head, kv_width = params.n_head_kv * params.d_head;
  for (int c = threadIdx.x; c < d; c += kThreads) query[c] = call.q[r * width + head * d + c] * params.scale;
  __syncthreads();

  Running running;
  for (int p0 = first / kPage * kPage; first < end && p0 < end; p0 += kPage) {
    const int from = max(first, p0) - p0, n = min(end, p0 + kPage) - p0 - from;
    const int64_t page = static_cast<int64_t>(rows.pages[s.first_page + p0 / kPage]) * params.n_head_kv + kv_head;
    const T* keys = reinterpret_cast<const T*>(memory.keys) + (page * kPage + from) * d;
    const T* values = reinterpret_cast<const T*>(memory.values) + page * kPage * d + from;
    for (int i = warp; i < n; i += kThreads / kWarp) {
      float dot = 0;
      for (int c = lane; c < d; c += kWarp) dot = fmaf(query[c], widen(keys[i * d + c]), dot);
      dot = warp_sum(dot);
      if (lane == 0) scores[i] = dot;
    }
    __syncthreads();
    const float shrink = running.take_scores(scores, n);
    for (int j = 0; j * kThreads < d; ++j) {
      const int c = j * kThreads + static_cast<int>(threadIdx.x);
      if (c >= d) break;
      float sum = running.y[j] * shrink;
      for (int i = 0; i < n; ++i) sum = fmaf(scores[i], widen(values[static_cast<int64_t>(c) * kPage + i]), sum);
      running.y[j] = sum;
    }
    __syncthreads();
  }
  for (int i0 = 0; call.k && i0 < s.n_tok; i0 += kPage) {  // the block's own rows
    const int n = min(kPage, s.n_tok - i0);
    const float* keys = call.k + (s.row + i0) * kv_width + kv_head * d;
    const float* values = call.v + (s.row + i0) * kv_width + kv_head * d;
    for (int i = warp; i < n; i += kThreads / kWarp) {
      float dot = 0;
      for (int c = lane; c < d; c += kWarp) dot = fmaf(query[c], keys[i * kv_width + c], dot);
      dot = warp_sum(dot);
      const int other = s.pos + i0 + i;
      const bool seen = (window == 0 || abs(pos - other) < window) && (!params.causal || other <= pos);
      if (lane == 0) scores[i] = seen ? dot : -INFINITY;
    }
    __syncthreads();
    float top = running.peak;
    for (int i = 0; i < n; ++i) top = fmaxf(top, scores[i]);
    if (top > -INFINITY) {  // the same for all threads; nothing may be visible yet
      const float shrink = running.take_scores(scores, n);
      for (int j = 0; j * kThreads < d; ++j) {
        const int c = j * kThreads + static_cast<int>(threadIdx.x);
        if (c >= d) break;
        float sum = running.y[j] * shrink;
        for (int i = 0; i < n; ++i) sum = fmaf(scores[i], values[i * kv_width + c], sum);
        running.y[j] = sum;
      }
    }
    __syncthreads();
  }
  for (int j = 0; j * kThreads < d; ++j) {
    const int c = j * kThreads + static_cast<int>(threadIdx.x);
    if (c < d) call.y[r * width + head * d + c] = running.y[j] / running.sum;
  }
}

template <class T>
void run(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows, const KvMemory& memory,
         gpuStream_t stream) {
  launch(attend<T>, dim3(static_cast<unsigned>(call.n_row), static_cast<unsigned>(params.n_head)), dim3(kThreads),
         static_cast<size_t>(params.d_head) * sizeof(float), stream, call, params, rows, memory);
}

}  // namespace

bool attention_fits(const AttentionParams& params) { return params.d_head <= kMostColumns * kThreads; }

void kv_store(const float* k, const float* v, const BatchRows& rows, const KvMemory& memory, gpuStream_t stream) {
  if (rows.n_tok == 0) return;
  const dim3 grid(static_cast<unsigned>(rows.n_tok));
  if (memory.type == CacheType::f16) {
    launch(store<__half>, grid, dim3(256), 0, stream, k, v, rows, memory);
  } else {
    launch(store<float>, grid, dim3(256), 0, stream, k, v, rows, memory);
  }
}

void attention(const AttentionCall& call, const AttentionParams& params, const BatchRows& rows, const KvMemory& memory,
               gpuStream_t stream) {
  if (call.n_row == 0) return;
  if (attention_mma_fits(call, params, memory, rows)) {
    attention_mma(call, params, rows, memory, stream);
  } else if (memory.type == CacheType::f16) {
    run<__half>(call, params, rows, memory, stream);
  } else {
    run<float>(call, params, rows, memory, stream);
  }
}

}  // namespace onebit::gpu
