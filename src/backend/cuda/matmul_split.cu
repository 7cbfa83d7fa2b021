// Products of float weights and f32 rows on m16n8k8 tf32, exact to about 2^-21: a number is split into its upper 11
// bits and the rest, which are multiplied separately. f16 and bf16 weights fit into one part, f32 weights take two.
//
// A strip of 16 outputs and up to 8 * kTiles rows belong to kWarps warps of each of kSlices blocks (a cluster of
// sm_90), which take blocks of 32 columns in turn and add up in shared memory, in a fixed order. Small matrices
// (routers, gates: a few strips) are cut into slices, since one block can't ask for their bytes fast enough. Lane (g,
// c) reads columns 8c..8c+7 of rows g and g + 8: 16 bytes of f16, full sectors.
//
// Cost per 32 columns and warp at 8 rows, bf16: 1,024 bytes of weights; 8 mma; about 90 instructions, most of them to
// split x. Meant for few rows, where memory decides, and for small matrices.
#include <cooperative_groups.h>

#include "backend/cuda/matmul.h"
#include "backend/cuda/mma.cuh"
#include "backend/gpu/blocks.cuh"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kMaxProducts = 8, kColumns = 32;

struct SplitProduct {
  const uint8_t* data;
  float* y;
  const float* add;
  int32_t n_out, first_strip;
};
struct SplitJob {
  SplitProduct products[kMaxProducts];
  int n_product, n_row, n_in;
  const float* x;
};

__device__ inline uint32_t upper_part(float x) { return __float_as_uint(x) & 0xffffe000u; }
__device__ inline uint32_t lower_part(float x) { return __float_as_uint(x - __uint_as_float(upper_part(x))); }

/// 8 columns of a row.
template <BlockType kType>
struct Eight {
  static constexpr int kLoads = kType == BlockType::f32 ? 2 : 1;
  uint4 raw[kLoads];

  __device__ void load(const uint8_t* row, int64_t column) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) raw[i] = load_stream(row + column * (16 * kLoads / 8) + 16 * i);
  }
  __device__ float value(int i) const {
    const uint4& v = raw[i * kLoads / 8];
    const int at = i % (8 / kLoads);
    if constexpr (kType == BlockType::f32) {
      return __uint_as_float(at == 0 ? v.x : at == 1 ? v.y : at == 2 ? v.z : v.w);
    } else {
      const uint32_t two = at / 2 == 0 ? v.x : at / 2 == 1 ? v.y : at / 2 == 2 ? v.z : v.w;
      if constexpr (kType == BlockType::bf16) return __uint_as_float(at % 2 ? two & 0xffff0000u : two << 16);
      return __half2float(__ushort_as_half(static_cast<unsigned short>(at % 2 ? two >> 16 : two)));
    }
  }
};

template <BlockType kType, int kTiles>
__device__ void multiply(const Eight<kType> (&w)[2], const float* const (&x)[kTiles], int64_t column,
                         float (&sums)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const float4 low = *reinterpret_cast<const float4*>(x[t] + column);
    const float4 high = *reinterpret_cast<const float4*>(x[t] + column + 4);
    const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a[4] = {w[0].value(2 * i), w[1].value(2 * i), w[0].value(2 * i + 1), w[1].value(2 * i + 1)};
      const uint32_t upper[4] = {upper_part(a[0]), upper_part(a[1]), upper_part(a[2]), upper_part(a[3])};
      const uint32_t x0 = upper_part(v[2 * i]), x1 = upper_part(v[2 * i + 1]);
      mma_tf32(sums[t], upper, x0, x1);
      mma_tf32(sums[t], upper, lower_part(v[2 * i]), lower_part(v[2 * i + 1]));
      if constexpr (kType == BlockType::f32) {
        const uint32_t lower[4] = {lower_part(a[0]), lower_part(a[1]), lower_part(a[2]), lower_part(a[3])};
        mma_tf32(sums[t], lower, x0, x1);
      }
    }
  }
}

/// Adds the sums of a strip's warps into those of warp 0 of the first slice.
template <int kTiles, int kWarps, int kSlices>
__device__ void add_parts(float4 (&shared)[kTiles][kWarps][kWarp], int slice) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  __syncthreads();
  for (int t = warp; t < kTiles; t += kWarps) {
    float4 sum = shared[t][0][lane];
    for (int w = 1; w < kWarps; ++w) {
      const float4 more = shared[t][w][lane];
      sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
    }
    shared[t][0][lane] = sum;
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kSlices > 1) {
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    for (int t = warp; t < kTiles && slice == 0; t += kWarps) {
      float4 sum = shared[t][0][lane];
      for (int s = 1; s < kSlices; ++s) {
        const float4 more = *cluster.map_shared_rank(&shared[t][0][lane], s);
        sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
      }
      shared[t][0][lane] = sum;
    }
    cluster.sync();  // no block ends while its sums are being read
  }
#endif
  (void)slice;
}

/// Grid [slices of the strips of all products, rows / (8 kTiles)].
template <BlockType kType, int kTiles, int kWarps, int kSlices>
__global__ void __launch_bounds__(kWarps* kWarp, 1) multiply_split(const __grid_constant__ SplitJob job) {
  constexpr int kDepth = kType == BlockType::f32 ? 3 : 4, kStep = kWarps * kSlices;
  let_next_start();
  const int strip = static_cast<int>(blockIdx.x) / kSlices, slice = static_cast<int>(blockIdx.x) % kSlices;
  int p = 0;
  while (p + 1 < job.n_product && strip >= job.products[p + 1].first_strip) ++p;
  const SplitProduct& product = job.products[p];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, c = lane % 4;
  const int first_out = (strip - product.first_strip) * 16;
  const int64_t row_bytes = static_cast<int64_t>(job.n_in) * (kType == BlockType::f32 ? 4 : 2);
  const uint8_t* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) rows[i] = product.data + min(first_out + g + 8 * i, product.n_out - 1) * row_bytes;
  const int n_block = job.n_in / kColumns, begin = slice * kWarps + warp;
  Eight<kType> ring[kDepth][2];
  const auto load = [&](int slot, int block) {
    if (block >= n_block) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) ring[slot][i].load(rows[i], block * kColumns + 8 * c);
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) load(i, begin + kStep * i);
  wait_for_previous();
  const int first_row = static_cast<int>(blockIdx.y) * 8 * kTiles;
  const float* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    x[t] = job.x + static_cast<int64_t>(min(first_row + 8 * t + g, job.n_row - 1)) * job.n_in + 8 * c;
  }
  float sums[kTiles][4] = {};
  for (int block = begin; block < n_block; block += kStep * kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int at = block + kStep * i;
      if (at >= n_block) break;
      multiply<kType, kTiles>(ring[i], x, at * kColumns, sums);
      load(i, at + kStep * kDepth);
    }
  }
  __shared__ float4 shared[kTiles][kWarps][kWarp];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) shared[t][warp][lane] = {sums[t][0], sums[t][1], sums[t][2], sums[t][3]};
  add_parts<kTiles, kWarps, kSlices>(shared, slice);
  for (int t = warp; t < kTiles && slice == 0; t += kWarps) {
    const float4 sum = shared[t][0][lane];
    const float y[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + 8 * t + 2 * c + i % 2, n = first_out + g + i / 2 * 8;
      if (row >= job.n_row || n >= product.n_out) continue;
      const int64_t at = static_cast<int64_t>(row) * product.n_out + n;
      product.y[at] = product.add ? y[i] + product.add[at] : y[i];
    }
  }
}

constexpr int kManySlices = 8;
constexpr int64_t kSlicedRows = 64;  // beyond, row tiles give blocks enough

bool has_clusters() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "reading device properties");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "reading device properties");
  return major >= 9;
}

template <BlockType kType, int kTiles>
void start(const SplitJob& job, int64_t strips, bool sliced, gpuStream_t stream) {
  const unsigned row_tiles = static_cast<unsigned>((job.n_row + 8 * kTiles - 1) / (8 * kTiles));
  if (!sliced) {
    return launch(multiply_split<kType, kTiles, 16, 1>, dim3(static_cast<unsigned>(strips), row_tiles),
                  dim3(16 * kWarp), 0, stream, job);
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = kManySlices;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(strips * kManySlices), row_tiles);
  config.blockDim = dim3(4 * kWarp);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, multiply_split<kType, kTiles, 4, kManySlices>, job), "starting a kernel");
}

}  // namespace

void matmul_split(std::span<const Product> products, const float* x, int64_t n_row, gpuStream_t stream) {
  for (size_t begin = 0; begin < products.size();) {
    const BlockType type = products[begin].weight->type;
    SplitJob job{};
    int64_t strips = 0;
    size_t end = begin;
    while (end < products.size() && end - begin < kMaxProducts && products[end].weight->type == type) {
      const Product& p = products[end];
      job.products[end++ - begin] = {p.weight->data, p.y, p.add, static_cast<int32_t>(p.weight->n_out),
                                     static_cast<int32_t>(strips)};
      strips += n_strip(p.weight->n_out);
    }
    job.n_product = static_cast<int>(end - begin);
    job.n_row = static_cast<int>(n_row);
    job.n_in = static_cast<int>(products[begin].weight->n_in);
    job.x = x;
    const bool sliced = has_clusters() && n_row <= kSlicedRows && strips * 4 <= count_sms();
    with_float_type(type, [&]<BlockType kType>() {
      if (n_row <= 8) return start<kType, 1>(job, strips, sliced, stream);
      start<kType, 4>(job, strips, sliced, stream);
    });
    begin = end;
  }
}

}  // namespace onebit::cuda
