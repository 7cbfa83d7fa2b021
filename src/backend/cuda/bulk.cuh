// Barriers in shared memory that count the bytes of bulk copies into it: the copy engine of sm_90 and later. Elsewhere
// there is nothing here.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define ONEBIT_BULK_COPIES 1
#endif

namespace onebit::cuda {

#ifdef ONEBIT_BULK_COPIES

__device__ inline void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Makes initialised barriers visible to the copy engine.
__device__ inline void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Returns when the barrier's phase of this parity is complete.
__device__ inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni end;\n"
      "bra.uni again;\n"
      "end:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// bytes (a multiple of 16) from global to shared memory; counts on the barrier.
__device__ inline void copy_bulk(uint32_t to, const uint8_t* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// What is read once is to leave L2 first.
__device__ inline uint64_t read_once_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// As copy_bulk(), with a cache policy.
__device__ inline void copy_bulk(uint32_t to, const uint8_t* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

#endif

}  // namespace onebit::cuda
