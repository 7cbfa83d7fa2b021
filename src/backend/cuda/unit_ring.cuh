// A warp's units of weights on their way through a ring in shared memory, so that memory is asked for them long before
// they are multiplied. A slot takes a chunk, some neighbouring units. From sm_90 on one lane starts a bulk copy a
// chunk, and a barrier counts its bytes; before, every lane copies its share. Weights leave L2 first: what stays there
// is what every layer needs, code too, which a kernel of few blocks would otherwise fetch from memory line by line.
// The warp that uses a ring fills it, so
// warps wait for nobody else.
#pragma once

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/gpu/forms.h"

namespace onebit::cuda {

/// Slots before sm_90, where their number has to be known when the kernel is compiled.
inline constexpr int kFixedDepth = 4;

/// A ring's slots, and the most units in one.
struct RingShape {
  int depth, chunk;
};
constexpr int ring_bytes(gpu::WeightForm form, RingShape shape) {
  return shape.depth * (shape.chunk * gpu::unit_bytes(form) + 16);
}
/// The ring for at most `bytes` bytes: large chunks cost the fewest instructions, but two of them have to fit. Depth 0:
/// none fits.
inline RingShape ring_for(gpu::WeightForm form, int bytes, bool bulk) {
  if (!bulk) return {ring_bytes(form, {kFixedDepth, 1}) <= bytes ? kFixedDepth : 0, 1};
  constexpr int kMostDepth = 8;
  for (int chunk = 4; chunk > 1; chunk /= 2) {
    const int depth = bytes / ring_bytes(form, {1, chunk});
    if (depth >= 2) return {depth < kMostDepth ? depth : kMostDepth, chunk};
  }
  const int depth = bytes / ring_bytes(form, {1, 1});
  return {depth < 3 ? 0 : depth < kMostDepth ? depth : kMostDepth, 1};
}

template <gpu::WeightForm kForm>
class UnitRing {
 public:
  static constexpr int kUnit = gpu::unit_bytes(kForm);

  /// Rings of a block one after another in `memory` (16-byte aligned). A warp-wide call.
  __device__ UnitRing(uint8_t* memory, int warp, int lane, RingShape shape)
      : slot_bytes_(static_cast<uint32_t>(shape.chunk) * kUnit), depth_(shape.depth) {
    const uint32_t all = shared_address(memory) + warp * ring_bytes(kForm, shape);
    barriers_ = all;
    slots_ = all + shape.depth * 16;
#ifdef ONEBIT_BULK_COPIES
    policy_ = read_once_policy();
    if (lane == 0) {
      for (int i = 0; i < shape.depth; ++i) init_barrier(barriers_ + i * 8, 1);
      fence_barriers();
    }
    __syncwarp();
#else
    (void)lane;
#endif
  }
  __device__ int depth() const { return depth_; }

  /// Starts copying n units at `from` into slot `slot`, which nobody reads any more; n = 0: there are none.
  __device__ void start(int slot, const uint8_t* from, int n, int lane) const {
#ifdef ONEBIT_BULK_COPIES
    if (lane == 0 && n > 0) {
      arrive_expecting(barriers_ + slot * 8, n * kUnit);
      copy_bulk(slots_ + slot * slot_bytes_, from, n * kUnit, barriers_ + slot * 8, policy_);
    }
#else
    for (int chunk = lane * 16; chunk < n * kUnit; chunk += gpu::kWarp * 16) {
      copy_async(slots_ + slot * slot_bytes_ + chunk, from + chunk);
    }
    commit_copies();
#endif
  }
  /// Address of the next chunk, once it is there: chunks come in the order in which they were started.
  __device__ uint32_t wait() const {
#ifdef ONEBIT_BULK_COPIES
    wait_barrier(barriers_ + slot_ * 8, phase_);
#else
    wait_copies<kFixedDepth - 1>();
    __syncwarp();
#endif
    return slots_ + slot_ * slot_bytes_;
  }
  /// The chunk has been read: n units at `next` take its slot.
  __device__ void release(const uint8_t* next, int n, int lane) {
    __syncwarp();
    start(slot_, next, n, lane);
    if (++slot_ == depth_) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  uint32_t barriers_, slots_, slot_bytes_, phase_ = 0;
  uint64_t policy_ = 0;
  int depth_, slot_ = 0;
};

}  // namespace onebit::cuda
