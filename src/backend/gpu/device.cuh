// Small device functions that several kernels share.
#pragma once

#include "backend/gpu/runtime.h"

namespace onebit::gpu {

__device__ inline float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu_of(float x) { return x * sigmoid_of(x); }

/// Sum over a block of whole warps, in every thread; `shared` holds a float per warp. All threads must take part.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  const int n_warp = blockDim.x / kWarp;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < n_warp; ++i) sum += shared[i];
  __syncthreads();
  return sum;
}

inline unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

}  // namespace onebit::gpu
