// Products of q4_0 weights and 4-bit activations on the 4-bit tensor cores of sm_80 to sm_89 (m16n8k32, s4 x s4), exact
// in the integer sums. Later GPUs have no such instruction: there it is emulated, which serves tests alone.
//
// A block makes 128 outputs x 128 rows. Each of 8 warps owns a strip of 16 outputs: its nibble words are the A operand
// after one exclusive or (q4_0 codes are biased by 8), no unpacking. Activations pass through shared memory in stages
// of one unit (128 columns): 8 KB of nibbles, 2 KB of scales.
//
// Cost per unit and warp: 64 mma of 4,096 multiply-adds, 768 instructions to scale and add their sums (which decide:
// one mma per 12 instructions and scheduler), 48 16-byte loads of shared memory. Registers: 64 sums, 24 weights.
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/matmul.h"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kRows = 128, kWarps = 8, kThreads = kWarps * kWarp, kStages = 3, kMaxProducts = 8;
constexpr int kRowTiles = kRows / 8, kTileOuts = kWarps * kStripRows;
constexpr int kNibbleStage = kRows * 64, kStageBytes = kNibbleStage + kRows * 16;

struct Int4Product {
  const uint8_t* data;
  float* y;
  const float* add;
  int32_t n_out, first_tile;
};
struct Int4Job {
  Int4Product products[kMaxProducts];
  int n_product, n_units, n_row_tiles, n_row;
  const uint8_t* nibbles;
  const float* scales;
  int64_t t_rows;
};

__device__ inline void mma_s4(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

/// Brings one unit of the rows from first_row on.
__device__ void bring_stage(const Int4Job& job, int unit, int first_row, uint8_t* stage) {
  const int rows = min(kRows, static_cast<int>(job.t_rows) - first_row);
  const int64_t at = unit * job.t_rows + first_row;
  for (int i = threadIdx.x; i < rows * 4; i += kThreads) copy_async(stage + i * 16, job.nibbles + at * 64 + i * 16);
  for (int i = threadIdx.x; i < rows; i += kThreads)
    copy_async(stage + kNibbleStage + i * 16, job.scales + (at + i) * 4);
}

__device__ inline float element(const float4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ void multiply_unit(const Unit<WeightForm::n4>& weights, const uint8_t* stage, int lane,
                              float (&sums)[kRowTiles][4]) {
  const int g = lane / 4, c = lane % 4;
  const float4* scales = reinterpret_cast<const float4*>(stage + kNibbleStage);
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    const uint4 b = reinterpret_cast<const uint4*>(stage)[(8 * t + g) * 4 + c];
    const float4 d0 = scales[8 * t + 2 * c], d1 = scales[8 * t + 2 * c + 1];
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const uint4& words = weights.low[block / 2];
      int s[4] = {};
      mma_s4(s, part(words, block % 2 * 2) ^ 0x88888888u, part(words, block % 2 * 2 + 1) ^ 0x88888888u, part(b, block));
      const RowPair dw = weights.scale(block, 0);
      const float da0 = element(d0, block), da1 = element(d1, block);
      sums[t][0] = fmaf(static_cast<float>(s[0]) * dw.g, da0, sums[t][0]);
      sums[t][1] = fmaf(static_cast<float>(s[1]) * dw.g, da1, sums[t][1]);
      sums[t][2] = fmaf(static_cast<float>(s[2]) * dw.g8, da0, sums[t][2]);
      sums[t][3] = fmaf(static_cast<float>(s[3]) * dw.g8, da1, sums[t][3]);
    }
  }
}

__device__ void store(const Int4Product& product, const float (&sums)[kRowTiles][4], int first_out, int first_row,
                      int n_row, int lane) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + 8 * t + lane % 4 * 2 + i % 2, n = first_out + lane / 4 + i / 2 * 8;
      if (row >= n_row || n >= product.n_out) continue;
      const int64_t at = static_cast<int64_t>(row) * product.n_out + n;
      product.y[at] = product.add ? sums[t][i] + product.add[at] : sums[t][i];
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) multiply_int4(const __grid_constant__ Int4Job job) {
  wait_for_previous();
  __shared__ __align__(16) uint8_t stages[kStages][kStageBytes];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int out_tile = blockIdx.x / job.n_row_tiles, first_row = blockIdx.x % job.n_row_tiles * kRows;
  int p = 0;
  while (p + 1 < job.n_product && out_tile >= job.products[p + 1].first_tile) ++p;
  const Int4Product& product = job.products[p];
  const int first_out = (out_tile - product.first_tile) * kTileOuts + warp * kStripRows;
  const bool inside = first_out < product.n_out;
  const uint8_t* strip = product.data + static_cast<int64_t>(inside ? first_out / kStripRows : 0) * job.n_units *
                                            unit_bytes(WeightForm::n4);
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < job.n_units) bring_stage(job, i, first_row, stages[i]);
    commit_copies();
  }
  Unit<WeightForm::n4> now, next;
  now.load(strip, lane);
  float sums[kRowTiles][4] = {};
  for (int unit = 0; unit < job.n_units; ++unit) {
    if (unit + 1 < job.n_units) next.load(strip + static_cast<int64_t>(unit + 1) * unit_bytes(WeightForm::n4), lane);
    wait_copies<kStages - 2>();
    __syncthreads();  // the stage is there, and the one before it is free
    const int ahead = unit + kStages - 1;
    if (ahead < job.n_units) bring_stage(job, ahead, first_row, stages[ahead % kStages]);
    commit_copies();
    multiply_unit(now, stages[unit % kStages], lane, sums);
    now = next;
  }
  if (inside) store(product, sums, first_out, first_row, job.n_row, lane);
}

}  // namespace

bool has_int4() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "reading device properties");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "reading device properties");
  return major == 8;
}

void matmul_int4(std::span<const Product> products, const DeviceActs& acts, gpuStream_t stream) {
  for (size_t begin = 0; begin < products.size(); begin += kMaxProducts) {
    const size_t end = std::min(products.size(), begin + kMaxProducts);
    Int4Job job{};
    int64_t out_tiles = 0;
    for (size_t i = begin; i < end; ++i) {
      const Product& p = products[i];
      job.products[i - begin] = {p.weight->data, p.y, p.add, static_cast<int32_t>(p.weight->n_out),
                                 static_cast<int32_t>(out_tiles)};
      out_tiles += (p.weight->n_out + kTileOuts - 1) / kTileOuts;
    }
    job.n_product = static_cast<int>(end - begin);
    job.n_units = static_cast<int>(n_unit(acts.n_in));
    job.n_row_tiles = static_cast<int>((acts.n_row + kRows - 1) / kRows);
    job.n_row = static_cast<int>(acts.n_row);
    job.nibbles = acts.nibbles;
    job.scales = acts.nibble_scales;
    job.t_rows = padded_rows(acts.n_row);
    launch(multiply_int4, dim3(static_cast<unsigned>(out_tiles * job.n_row_tiles)), dim3(kThreads), 0, stream, job);
  }
}

}  // namespace onebit::cuda
