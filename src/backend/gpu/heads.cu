// What stands between the projections and attention, in one launch: selecting heads, their norm, rotary embedding, and
// storing keys and values. A warp a head of a row; each input is read once and each result written once.
#include "backend/gpu/device.cuh"
#include "backend/gpu/kernels.h"

namespace onebit::gpu {
namespace {

constexpr int kWarps = 4;

__device__ inline void put(uint8_t* cache, CacheType type, int64_t at, float x) {
  if (type == CacheType::f16) {
    reinterpret_cast<__half*>(cache)[at] = __float2half_rn(x);
  } else {
    reinterpret_cast<float*>(cache)[at] = x;
  }
}

/// Grid (row, heads of all jobs / kWarps).
__global__ void prepare(HeadsCall call, BatchRows rows) {
  GPU_DYNAMIC_SHARED(float, shared);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, d = call.d_head;
  const int64_t r = blockIdx.x;
  int head = blockIdx.y * kWarps + warp, j = 0;
  while (j < call.n_job && head >= call.jobs[j].n_head) head -= call.jobs[j++].n_head;
  const HeadJob& job = call.jobs[min(j, call.n_job - 1)];
  // Batches and weights are there before any kernel of theirs.
  int pos = 0;
  int64_t page = 0;
  if (job.store != HeadJob::Store::none) {
    pos = rows.row_pos[r];
    page = rows.pages[rows.sequences[rows.row_sequence[r]].first_page + pos / kPageTokens];
  }
  if (job.norm && 4 * lane < d) prefetch(job.norm + 4 * lane);
  wait_for_previous();
  if (j == call.n_job) return;
  const int n_pair = call.n_rot / 2;
  const float2* turns = call.table + r * n_pair;
  float2 turn = {};
  if (job.rotate && lane < n_pair) turn = turns[lane];
  const float* x = job.x + r * job.row_stride + head * job.head_stride;
  float* own = shared + warp * d;
  float sum = 0;
  for (int c = lane; c < d; c += kWarp) {
    own[c] = x[c];
    sum = fmaf(x[c], x[c], sum);
  }
  if (job.norm) {
    const float rms = sqrtf(warp_sum(sum) / static_cast<float>(d) + job.eps);
    for (int c = lane; c < d; c += kWarp) own[c] = own[c] / rms * job.norm[c];
  }
  sync_warp();
  if (job.rotate) {
    for (int i = lane; i < n_pair; i += kWarp) {
      if (i > lane) turn = turns[i];
      const int first = call.neox ? i : 2 * i, second = call.neox ? i + n_pair : 2 * i + 1;
      const float a = own[first], b = own[second];
      own[first] = a * turn.x - b * turn.y;
      own[second] = a * turn.y + b * turn.x;
    }
    sync_warp();
  }
  if (job.y) {
    float* y = job.y + (r * job.n_head + head) * d;
    for (int c = lane; c < d; c += kWarp) y[c] = own[c];
  }
  if (job.store == HeadJob::Store::none) return;
  const int64_t at = (page * job.n_head + head) * kPageTokens * d;
  for (int c = lane; c < d; c += kWarp) {
    if (job.store == HeadJob::Store::key) {
      put(call.cache.keys, call.cache.type, at + pos % kPageTokens * d + c, own[c]);
    } else {
      put(call.cache.values, call.cache.type, at + c * kPageTokens + pos % kPageTokens, own[c]);
    }
  }
}

}  // namespace

void prepare_heads(const HeadsCall& call, const BatchRows& rows, gpuStream_t stream) {
  if (rows.n_tok == 0) return;
  int64_t n_head = 0;
  for (int j = 0; j < call.n_job; ++j) n_head += call.jobs[j].n_head;
  launch(prepare, dim3(static_cast<unsigned>(rows.n_tok), blocks_for(n_head, kWarps)), dim3(kWarps * kWarp),
         static_cast<size_t>(kWarps * call.d_head) * sizeof(float), stream, call, rows);
}

}  // namespace onebit::gpu
