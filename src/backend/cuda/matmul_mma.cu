// Products for many rows on m16n8k16 halves, for every NVIDIA GPU since sm_80 (on sm_90 matmul_wgmma.cu is faster).
//
// A block makes 128 outputs x 128 rows: each of 8 warps one strip of 16 outputs, whose weights go from memory straight
// into registers and become fragments there, and all 128 rows, whose halves pass through shared memory in stages of 64
// columns (16 KB) with the swizzle they have in memory.
//
// Cost per 64 columns and warp: 64 mma (2,048 multiply-adds each), 32 ldmatrix.x4 (16 KB of shared memory, the bound
// beside the mma: 128 bytes a clock), 60 instructions to make fragments of n4. Registers: 64 sums, 24 weights, 16
// fragments. Device memory: weights once per 128 rows, activations once per 128 outputs, mostly from L2.
#include "backend/cuda/half.cuh"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kRows = 128, kWarps = 8, kThreads = kWarps * kWarp, kStages = 4;
constexpr int kRowTiles = kRows / 8;
constexpr int kStageBytes = kRowTiles * kActAtomBytes;

__device__ inline void load_matrices(uint32_t address, uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address));
}

/// Brings 64 columns of the tile's rows to a stage; atoms beyond the rows are left as they are.
__device__ void bring_stage(const HalfJob& job, const HalfTile& tile, int chunk, uint8_t* stage) {
  const uint8_t* from = job.halves + ((tile.begin * 2 + chunk) * job.atoms + tile.atom) * kActAtomBytes;
  const int bytes = (tile.count + 7) / 8 * kActAtomBytes;
  for (int at = threadIdx.x * 16; at < bytes; at += kThreads * 16) copy_async(stage + at, from + at);
}

/// sums += the strip's fragments of 32 columns x all rows; `half`: which 32 of the stage's 64 columns.
__device__ void multiply_block(const uint32_t (&a)[8], uint32_t stage, int half, int lane,
                               float (&sums)[kRowTiles][4]) {
  const int r = lane % 8, matrix = lane / 8;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint32_t chunk = (half * 2 + step) * 2 + matrix % 2;
    const uint32_t address = stage + matrix / 2 * kActAtomBytes + r * 128 + (chunk ^ r) * 16;
#pragma unroll
    for (int t = 0; t < kRowTiles; t += 2) {
      uint32_t b[4];
      load_matrices(address + t * kActAtomBytes, b);
      mma_f16(sums[t], a + 4 * step, b[0], b[1]);
      mma_f16(sums[t + 1], a + 4 * step, b[2], b[3]);
    }
  }
}

template <WeightForm kForm>
__global__ void __launch_bounds__(kThreads, 1) multiply_many(const __grid_constant__ HalfJob job) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  wait_for_previous();
  const HalfTile tile = find_half_tile<kForm, kRows>(job, blockIdx.x, lane);
  if (!tile.any) return;
  const bool inside = tile.first_out + warp * kStripRows < tile.product->n_out;
  const uint8_t* strip =
      tile.strips + (static_cast<int64_t>(inside ? warp : 0) * job.n_units + tile.begin) * unit_bytes(kForm);
  const int n_chunk = (tile.end - tile.begin) * 2;
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < n_chunk) bring_stage(job, tile, i, shared + i * kStageBytes);
    commit_copies();
  }
  Unit<kForm> now, next;
  now.load(strip, lane);
  float sums[kRowTiles][4] = {};
  for (int unit = 0; unit < n_chunk / 2; ++unit) {
    if (unit + 1 < n_chunk / 2) next.load(strip + static_cast<int64_t>(unit + 1) * unit_bytes(kForm), lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int chunk = unit * 2 + half;
      wait_copies<kStages - 2>();
      __syncthreads();  // the stage is there, and the one before it is free
      const int ahead = chunk + kStages - 1;
      if (ahead < n_chunk) bring_stage(job, tile, ahead, shared + ahead % kStages * kStageBytes);
      commit_copies();
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        uint32_t a[8];
        now.halves(half * 2 + block, a);
        multiply_block(a, shared_address(shared) + chunk % kStages * kStageBytes, block, lane, sums);
      }
    }
    now = next;
  }
  if (inside) store_half<kRowTiles>(job, tile, &sums[0][0], warp, lane);
}

void run(WeightForm form, const HalfJob& job, gpuStream_t stream) {
  constexpr int kShared = kStages * kStageBytes;
  with_form(form, [&]<WeightForm kForm>() {
    check(cudaFuncSetAttribute(multiply_many<kForm>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
          "preparing a product");
    launch(multiply_many<kForm>, dim3(static_cast<unsigned>(job.n_tiles * job.n_row_tiles * job.split)), dim3(kThreads),
           kShared, stream, job);
  });
}

}  // namespace

HalfKernel mma_kernel() { return {kRows, run}; }

}  // namespace onebit::cuda
