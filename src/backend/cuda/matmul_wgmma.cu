// Products for many rows on Hopper's warpgroup instructions (sm_90a).
//
// A block makes 128 outputs x kRows rows. Weights are the A operand and never touch shared memory: two warpgroups of 4
// warps own a strip of 16 outputs each, load its units straight into registers (forms.h has them in fragment order) and
// turn codes into halves there, while the tensor cores work on the fragments made before. Activations are the B
// operand: one thread of a third warpgroup copies 64 columns at a time (atoms in the swizzle that wgmma reads) into a
// ring of stages; barriers count the bytes in and the readers out. A block goes on to the next tile without draining
// them.
//
// Cost per 64 columns and warpgroup, kRows 256: 4 wgmma m64n256k16 of 128 clocks each; 60 instructions a warp to make
// fragments of n4, hidden behind them; 32 KB of shared memory filled. Two warpgroups share the tensor cores, so one may
// wait while the other multiplies. Registers: 128 sums, 32 fragments, 24 weights of 240. Device memory: weights once
// per kRows rows (L2 for the rest), activations once per 128 outputs from L2.
#include <algorithm>

#include "backend/cuda/half.cuh"
#include "backend/cuda/wgmma.cuh"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kThreads = 384, kGroup = 128;
constexpr int kStageTotal = 196608;  // bytes of shared memory for stages

template <int kRows>
constexpr int stage_bytes() {
  return kRows / 8 * kActAtomBytes;
}
template <int kRows>
constexpr int n_stage() {
  return kStageTotal / stage_bytes<kRows>() < 8 ? kStageTotal / stage_bytes<kRows>() : 8;
}
template <int kRows>
constexpr int shared_bytes() {
  return n_stage<kRows>() * stage_bytes<kRows>() + 1024 + 256;  // to align the stages; barriers
}

#ifdef ONEBIT_SM90A

/// Position in the ring of stages.
template <int kRows>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == n_stage<kRows>()) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kRows>
struct Stages {
  uint32_t data, full, empty;
  __device__ uint32_t at(int stage) const { return data + stage * stage_bytes<kRows>(); }
};

/// One thread: copies the tile's activations, 64 columns after 64 columns.
template <int kRows>
__device__ void bring(const HalfJob& job, const HalfTile& tile, const Stages<kRows>& stages, Ring<kRows>& ring) {
  const uint32_t bytes = static_cast<uint32_t>((tile.count + 7) / 8 * kActAtomBytes);
  const uint8_t* from = job.halves + (tile.begin * 2 * job.atoms + tile.atom) * kActAtomBytes;
  for (int chunk = tile.begin * 2; chunk < tile.end * 2; ++chunk, from += job.atoms * kActAtomBytes, ring.advance()) {
    wait_barrier(stages.empty + ring.stage * 8, ring.parity ^ 1);
    arrive_expecting(stages.full + ring.stage * 8, bytes);
    copy_bulk(stages.at(ring.stage), from, bytes, stages.full + ring.stage * 8);
  }
}

/// Blocks 2*half and 2*half + 1 of a unit as fragments of 4 steps of 16 columns.
template <WeightForm kForm>
__device__ void make_fragments(const Unit<kForm>& unit, int half, uint32_t (&a)[16]) {
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    uint32_t block[8];
    unit.halves(half * 2 + b, block);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[8 * b + i] = block[i];
  }
}

/// Starts the products of 64 columns; a must stay as it is until they are done.
template <int kRows>
__device__ void start_products(const uint32_t (&a)[16], const Stages<kRows>& stages, const Ring<kRows>& ring,
                               float (&sums)[kRows / 2]) {
  wait_barrier(stages.full + ring.stage * 8, ring.parity);
  const uint64_t b = atoms_descriptor(stages.at(ring.stage));
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) WgmmaHalf<kRows>::run(sums, a + 4 * step, b + 2 * step);
  wgmma_commit();
}

template <int kRows>
__device__ void finish_products(const Stages<kRows>& stages, Ring<kRows>& ring, bool leader) {
  wgmma_wait<0>();
  if (leader) arrive(stages.empty + ring.stage * 8);
  ring.advance();
}

/// Units of weights that a lane holds: a unit takes 2,048 clocks with 256 rows, 1,024 with 128; memory answers in
/// 1,500. What is wide leaves registers for one unit only.
template <WeightForm kForm, int kRows>
constexpr int kAhead = kRows == 128               ? 3
                       : unit_bytes(kForm) < 2200 ? 2
                                                  : 1;

template <WeightForm kForm, int kRows>
__device__ void multiply_strip(int n_units, const uint8_t* strip, const Stages<kRows>& stages, Ring<kRows>& ring,
                               int lane, float (&sums)[kRows / 2]) {
  constexpr int kUnits = kAhead<kForm, kRows>;
  Unit<kForm> units[kUnits];
  const auto load = [&](int slot, int unit) {
    if (unit < n_units) units[slot].load(strip + static_cast<int64_t>(unit) * unit_bytes(kForm), lane);
  };
  uint32_t first[16], second[16];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) load(i, i);
  make_fragments<kForm>(units[0], 0, first);
  for (int u = 0; u < n_units; u += kUnits) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (u + i >= n_units) break;
      start_products<kRows>(first, stages, ring, sums);
      make_fragments<kForm>(units[i], 1, second);
      load(i, u + i + kUnits);
      finish_products<kRows>(stages, ring, lane == 0);
      start_products<kRows>(second, stages, ring, sums);
      make_fragments<kForm>(units[(i + 1) % kUnits], 0, first);
      finish_products<kRows>(stages, ring, lane == 0);
    }
  }
}

#endif

template <WeightForm kForm, int kRows>
__global__ void __launch_bounds__(kThreads, 1) multiply_many(const __grid_constant__ HalfJob job) {
#ifdef ONEBIT_SM90A
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[2 * 8];
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kGroup;
  Stages<kRows> stages;
  stages.data = (shared_address(shared) + 1023) & ~1023u;
  stages.full = shared_address(barriers);
  stages.empty = stages.full + 64;
  if (threadIdx.x == 0) {
    for (int i = 0; i < n_stage<kRows>(); ++i) {
      init_barrier(stages.full + i * 8, 1);
      init_barrier(stages.empty + i * 8, 8);  // one lane of each multiplying warp
    }
    fence_barriers();
  }
  __syncthreads();
  wait_for_previous();
  const int n_block = job.n_tiles * job.n_row_tiles * job.split;
  Ring<kRows> ring;
  if (group == 0) {
    fewer_registers<40>();
    if (threadIdx.x >= kWarp) return;
    for (int block = blockIdx.x; block < n_block; block += gridDim.x) {
      const HalfTile tile = find_half_tile<kForm, kRows>(job, block, lane);
      if (tile.any && lane == 0) bring<kRows>(job, tile, stages, ring);
      __syncwarp();
    }
  } else {
    more_registers<232>();
    const int strip = threadIdx.x / kWarp - 4;
    for (int block = blockIdx.x; block < n_block; block += gridDim.x) {
      const HalfTile tile = find_half_tile<kForm, kRows>(job, block, lane);
      if (!tile.any) continue;
      const bool inside = tile.first_out + strip * kStripRows < tile.product->n_out;
      const int64_t first = static_cast<int64_t>(inside ? strip : 0) * job.n_units + tile.begin;
      float sums[kRows / 2];
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) sums[i] = 0;
      multiply_strip<kForm, kRows>(tile.end - tile.begin, tile.strips + first * unit_bytes(kForm), stages, ring, lane,
                                   sums);
      hold(sums);
      if (inside) store_half<kRows / 8>(job, tile, sums, strip, lane);
    }
  }
#endif
}

template <int kRows>
void run(WeightForm form, const HalfJob& job, gpuStream_t stream) {
  const int blocks = std::min(job.n_tiles * job.n_row_tiles * job.split, count_sms());
  with_form(form, [&]<WeightForm kForm>() {
    check(cudaFuncSetAttribute(multiply_many<kForm, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes<kRows>()),
          "preparing a product");
    launch(multiply_many<kForm, kRows>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), shared_bytes<kRows>(),
           stream, job);
  });
}

}  // namespace

HalfKernel wgmma_kernel(int64_t n_row, bool experts) {
  if (experts || n_row <= 128) return {128, run<128>};
  return {256, run<256>};
}

}  // namespace onebit::cuda
