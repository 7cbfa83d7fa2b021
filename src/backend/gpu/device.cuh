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

/// Starts copying kBytes (4, 8 or 16, aligned) to shared memory; commit_async() ends a batch of copies, and
/// wait_async<n>() waits until at most n batches are still under way.
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from) {
#if defined(__HIP__)
  memcpy(to, from, kBytes);
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes) : "memory");
  }
#endif
}
__device__ inline void commit_async() {
#if !defined(__HIP__)
  { asm volatile("cp.async.commit_group;" ::: "memory"); }
#endif
}
template <int kLeft>
__device__ inline void wait_async() {
#if !defined(__HIP__)
  { asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory"); }
#endif
}

inline unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

}  // namespace onebit::gpu
