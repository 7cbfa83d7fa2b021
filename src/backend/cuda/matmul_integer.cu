// Products for few rows, on integers: decoding, verifying, short prompts.
//
// Weights are the A operand of m16n8k32 (16 outputs x 32 columns), activations the B operand (32 columns x 8 rows), so
// 1 to 8 rows cost the same. A block of 32 columns starts a new integer sum; it is scaled into f32 sums at once, which
// keeps the integer sums those of backend/ref exactly. q4_0 nibbles are used as unsigned, their sum starts at -8 times
// the sum of the activations' codes.
//
// One warp owns a strip of 16 outputs and one of `split` parts of its units, which it brings to shared memory kDepth -
// 1 units ahead; the parts of a strip are added up in a fixed order. All blocks of a product of a layer are resident at
// once (kResident on an SM), so that memory sees one even stream without a last wave; blocks run alike, and find the
// activations that they share in L1.
//
// Cost for n4, a unit of 1,152 bytes and 8 rows: about 110 instructions a warp, at 16.5 bytes per clock and SM (4.3
// TB/s at 1.98 GHz) 70 clocks, 280 issue slots: memory decides up to 16 rows (about 180 instructions), the SM beyond.
// Bytes in flight per SM: up to 20 warps x 4 units, 92 KB.
#include <algorithm>

#include "backend/cuda/experts.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/matmul.h"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kWarps = 4;
constexpr int kMaxProducts = 8;

/// Blocks of an SM, and units of weights in a warp's ring, for 8 * tiles rows.
constexpr int resident(int tiles) { return tiles <= 2 ? 5 : 3; }
constexpr int depth_of(WeightForm form) { return unit_bytes(form) < 1200 ? 5 : unit_bytes(form) < 1500 ? 4 : 3; }
constexpr int ring_bytes(WeightForm form) { return kWarps * depth_of(form) * unit_bytes(form); }

struct Acts {
  const uint8_t* codes;
  const float* scales;
  const int16_t* starts;
  const int16_t* half_sums;
  int t_rows;
};

/// Where a lane finds its operands for up to 8 * kTiles rows of activations.
template <int kTiles>
struct Lane {
  int32_t b_row[kTiles];     // row g of each tile: operand B
  int32_t c_row[kTiles][2];  // rows 2c, 2c + 1: columns of the sums

  /// row_of(i) is the activation row of result i.
  template <class F>
  __device__ Lane(int lane, F row_of) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      b_row[t] = row_of(8 * t + lane / 4);
      c_row[t][0] = row_of(8 * t + lane % 4 * 2);
      c_row[t][1] = row_of(8 * t + lane % 4 * 2 + 1);
    }
  }
};

__device__ inline float element(const float4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
/// s16 number i of several words.
__device__ inline int short_at(const uint4& v, int i) {
  const uint32_t two = part(v, i / 2);
  return static_cast<int>(i % 2 ? two : two << 16) >> 16;
}

/// What a lane reads of the activations of 8 rows for one unit: codes of row g, scales and sums of rows 2c and 2c + 1.
template <WeightForm kForm>
struct TileActs {
  using U = Unit<kForm>;
  static constexpr bool kSums = U::kMin || U::kBias != 0;
  uint4 codes[2];
  float4 scales[2];
  uint4 sums[2];  // U::kBy16: of 16 codes; else two words, -8 times the sums of 32

  __device__ TileActs(const Acts& acts, int unit, int32_t b_row, const int32_t (&c_row)[2], int lane) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      codes[pair] =
          *reinterpret_cast<const uint4*>(acts.codes + ((unit * 2 + pair) * acts.t_rows + b_row) * 64 + lane % 4 * 16);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = unit * acts.t_rows + c_row[i];
      scales[i] = reinterpret_cast<const float4*>(acts.scales)[at];
      if constexpr (kSums && U::kBy16) sums[i] = reinterpret_cast<const uint4*>(acts.half_sums)[at];
      if constexpr (kSums && !U::kBy16) {
        const uint2 two = reinterpret_cast<const uint2*>(acts.starts)[at];
        sums[i].x = two.x;
        sums[i].y = two.y;
      }
    }
  }

  /// Integer products of block `block` (by 16: of its half h) with the weights' bytes a.
  __device__ void multiply(const uint32_t (&a)[4], int block, int h, int (&s)[4]) const {
    const uint32_t b0 = part(codes[block / 2], block % 2 * 2), b1 = part(codes[block / 2], block % 2 * 2 + 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = U::kBias == 0 ? 0 : start(i % 2, block, h);
    if constexpr (kForm == WeightForm::n6k) {
      mma_u8s8_k16(s, a[2 * h], a[2 * h + 1], h ? b1 : b0);
    } else if constexpr (U::kBy16) {
      mma_s8s8_k16(s, a[2 * h], a[2 * h + 1], h ? b1 : b0);
    } else if constexpr (U::kBytes || U::kTable) {
      mma_s8s8(s, a, b0, b1);
    } else {
      mma_u8s8(s, a, b0, b1);
    }
  }
  /// Sum of the activations' codes.
  __device__ float sum(int i, int block, int h) const {
    if constexpr (U::kBy16) return static_cast<float>(short_at(sums[i], block * 2 + h));
    return static_cast<float>(short_at(sums[i], block)) * -0.125f;
  }

 private:
  /// -kBias times the sum of the codes: takes the bias of unsigned weights back.
  __device__ int start(int i, int block, int h) const {
    if constexpr (U::kBy16) return -U::kBias * short_at(sums[i], block * 2 + h);
    return short_at(sums[i], block) * (U::kBias / 8);
  }
};

/// sums [row g: 2c, 2c+1; row g+8: 2c, 2c+1] += the unit's products with 8 rows.
template <WeightForm kForm>
__device__ void multiply_unit(const Unit<kForm>& weights, const TileActs<kForm>& acts, float (&sums)[4]) {
  using U = Unit<kForm>;
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    uint32_t a[4];
    weights.words(block, a);
    const float da[2] = {element(acts.scales[0], block), element(acts.scales[1], block)};
#pragma unroll
    for (int h = 0; h < (U::kBy16 ? 2 : 1); ++h) {
      int s[4];
      acts.multiply(a, block, h, s);
      const RowPair dw = weights.scale(block, h), mw = weights.min(block, h);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = fmaf(static_cast<float>(s[i]) * (i < 2 ? dw.g : dw.g8), da[i % 2], sums[i]);
        if constexpr (U::kMin) {
          sums[i] = fmaf(acts.sum(i % 2, block, h) * (i < 2 ? mw.g : mw.g8), -da[i % 2], sums[i]);
        }
      }
    }
  }
}

/// The units [at, end) of a strip on their way through a warp's ring in shared memory.
template <WeightForm kForm>
struct Stream {
  static constexpr int kDepth = depth_of(kForm), kUnit = unit_bytes(kForm);
  uint8_t* ring;
  const uint8_t* strip;
  int at, end;

  __device__ Stream(uint8_t* ring, const uint8_t* strip, int begin, int end, int lane)
      : ring(ring), strip(strip), at(begin), end(end) {
#pragma unroll
    for (int i = 0; i < kDepth - 1; ++i) bring(i, at + i, lane);
  }
  __device__ void bring(int slot, int unit, int lane) {
    if (unit < end) {
      const uint8_t* from = strip + static_cast<int64_t>(unit) * kUnit;
#pragma unroll
      for (int i = 0; i < (kUnit / 16 + kWarp - 1) / kWarp; ++i) {
        const int chunk = (lane + i * kWarp) * 16;
        if (chunk < kUnit) copy_async(ring + slot * kUnit + chunk, from + chunk);
      }
    }
    commit_copies();
  }
  template <int kTiles>
  __device__ void run(const Acts& acts, const Lane<kTiles>& rows, int lane, float (&sums)[kTiles][4]) {
    for (int slot = 0; at < end; ++at) {
      wait_copies<kDepth - 2>();
      __syncwarp();  // other lanes' copies have arrived too, and all have read the slot before
      Unit<kForm> unit;
      unit.template load<false>(ring + slot * kUnit, lane);
      bring(slot == 0 ? kDepth - 1 : slot - 1, at + kDepth - 1, lane);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_unit(unit, TileActs<kForm>(acts, at, rows.b_row[t], rows.c_row[t], lane), sums[t]);
      }
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
  }
};

/// Adds the parts of each strip in order; afterwards the warps with part 0 hold the whole sums.
template <int kTiles>
__device__ void add_parts(int split, int lane, int warp, float (&sums)[kTiles][4]) {
  if (split == 1) return;
  __shared__ float4 shared[kTiles][kWarps][kWarp];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) shared[t][warp][lane] = {sums[t][0], sums[t][1], sums[t][2], sums[t][3]};
  __syncthreads();
  if (warp % split) return;
  for (int p = 1; p < split; ++p) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float4 more = shared[t][warp + p][lane];
      sums[t][0] += more.x;
      sums[t][1] += more.y;
      sums[t][2] += more.z;
      sums[t][3] += more.w;
    }
  }
}

/// Result rows to_row(i) < 0 are left out.
template <int kTiles, class F>
__device__ void store(const float (&sums)[kTiles][4], int lane, int64_t first_out, int64_t n_out, F to_row, float* y,
                      const float* add) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = to_row(8 * t + lane % 4 * 2 + i % 2), n = first_out + lane / 4 + i / 2 * 8;
      if (row < 0 || n >= n_out) continue;
      const int64_t at = row * n_out + n;
      y[at] = add ? sums[t][i] + add[at] : sums[t][i];
    }
  }
}

struct OneProduct {
  const uint8_t* data;
  float* y;
  const float* add;
  int32_t n_out, first_block;
};
struct Job {
  OneProduct products[kMaxProducts];
  int n_product, n_row, n_units, split;
  Acts acts;
};

template <WeightForm kForm, int kTiles>
__global__ void __launch_bounds__(kWarps* kWarp, resident(kTiles)) multiply_few(const __grid_constant__ Job job) {
  let_next_start();
  int p = 0;
  while (p + 1 < job.n_product && static_cast<int>(blockIdx.x) >= job.products[p + 1].first_block) ++p;
  const OneProduct& product = job.products[p];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, part = warp % job.split;
  const int64_t strip = (blockIdx.x - product.first_block) * (kWarps / job.split) + warp / job.split;
  const bool inside = strip * kStripRows < product.n_out;
  const uint8_t* weights = product.data + (inside ? strip : 0) * job.n_units * unit_bytes(kForm);
  const int begin = inside ? part * job.n_units / job.split : 0;
  const int end = inside ? (part + 1) * job.n_units / job.split : 0;
  extern __shared__ __align__(16) uint8_t ring[];
  Stream<kForm> stream(ring + warp * (ring_bytes(kForm) / kWarps), weights, begin, end,
                       lane);  // weights don't depend on the kernel before
  wait_for_previous();
  const int last = job.n_row - 1;
  const Lane<kTiles> rows(lane, [&](int i) { return min(i, last); });
  float sums[kTiles][4] = {};
  stream.run(job.acts, rows, lane, sums);
  add_parts<kTiles>(job.split, lane, warp, sums);
  if (part != 0 || !inside) return;
  store<kTiles>(
      sums, lane, strip * kStripRows, product.n_out, [&](int i) -> int64_t { return i <= last ? i : -1; }, product.y,
      product.add);
}

constexpr int kMaxExpertProducts = 2;

/// Products of one shape.
struct ExpertJob {
  const uint8_t* data[kMaxExpertProducts];
  float* y[kMaxExpertProducts];
  int64_t expert_bytes;
  int n_out, n_units, split;
  int n_expert, n_pair, n_used, per_input;  // pairs per row of the input
  const int32_t *ids, *offsets, *order;
  Acts acts;
};

/// Grid [strips, chunks, products]. As multiply_few, for the rows of one expert at a time.
template <WeightForm kForm>
__global__ void __launch_bounds__(kWarps* kWarp, resident(1))
    multiply_few_experts(const __grid_constant__ ExpertJob job) {
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, part = warp % job.split;
  const bool one_token = job.n_pair == job.n_used;  // whose experts differ
  const int index = static_cast<int>(blockIdx.y);
  const ExpertTile chunk = one_token ? ExpertTile{.expert = job.ids[index], .first = index, .count = 1}
                                     : find_expert_tile<8>(job.offsets, job.n_expert, index, lane);
  if (chunk.expert < 0) return;
  const int64_t strip = blockIdx.x * (kWarps / job.split) + warp / job.split;
  const bool inside = strip * kStripRows < job.n_out;
  const uint8_t* weights =
      job.data[blockIdx.z] + chunk.expert * job.expert_bytes + (inside ? strip : 0) * job.n_units * unit_bytes(kForm);
  const int begin = inside ? part * job.n_units / job.split : 0;
  const int end = inside ? (part + 1) * job.n_units / job.split : 0;
  extern __shared__ __align__(16) uint8_t ring[];
  Stream<kForm> stream(ring + warp * (ring_bytes(kForm) / kWarps), weights, begin, end, lane);
  const auto pair_of = [&](int i) {
    const int at = chunk.first + min(i, chunk.count - 1);
    return one_token ? at : job.order[at];
  };
  const Lane<1> rows(lane, [&](int i) { return pair_of(i) / job.per_input; });
  float sums[1][4] = {};
  stream.run(job.acts, rows, lane, sums);
  add_parts<1>(job.split, lane, warp, sums);
  if (part != 0 || !inside) return;
  store<1>(
      sums, lane, strip * kStripRows, job.n_out, [&](int i) -> int64_t { return i < chunk.count ? pair_of(i) : -1; },
      job.y[blockIdx.z], nullptr);
}

/// Parts of a strip: as many as fit the chip at once, at least 4 units each. Depends on the weights alone, so that sums
/// are added in the same order for every row count.
int split_of(int64_t strips, int64_t units, int n_sm) {
  int split = 1;
  while (split < kWarps && strips * split * 2 <= int64_t{kWarps} * resident(1) * n_sm && split * 8 <= units) split *= 2;
  return split;
}

Acts acts_of(const DeviceActs& acts) {
  return {reinterpret_cast<const uint8_t*>(acts.codes), acts.scales, acts.starts, acts.half_sums,
          static_cast<int>(padded_rows(acts.n_row))};
}

/// With as much shared memory on an SM as its resident blocks take, the rest is left to L1.
template <class... Parameters, class... Arguments>
void launch_with_ring(WeightForm form, int tiles, void (*kernel)(Parameters...), dim3 grid, gpuStream_t stream,
                      const Arguments&... arguments) {
  constexpr int kMost = 228 * 1024, kSystem = 1024;
  const int block = ring_bytes(form) + kWarps * kWarp * 16 * tiles + kSystem;
  const int percent = std::min(100, (resident(tiles) * block * 100 + kMost - 1) / kMost);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ring_bytes(form)),
        "preparing a product");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent), "preparing a product");
  launch(kernel, grid, dim3(kWarps * kWarp), static_cast<size_t>(ring_bytes(form)), stream, arguments...);
}

template <WeightForm kForm>
void launch_few(const Job& job, int64_t blocks, gpuStream_t stream) {
  const dim3 grid(static_cast<unsigned>(blocks));
  if (job.n_row <= 8) return launch_with_ring(kForm, 1, multiply_few<kForm, 1>, grid, stream, job);
  if (job.n_row <= 16) return launch_with_ring(kForm, 2, multiply_few<kForm, 2>, grid, stream, job);
  launch_with_ring(kForm, 4, multiply_few<kForm, 4>, grid, stream, job);
}

}  // namespace

int count_sms() {
  int device = 0, n = 0;
  check(cudaGetDevice(&device), "reading device properties");
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device), "reading device properties");
  return n;
}

void matmul_integer(std::span<const Product> products, const DeviceActs& acts, gpuStream_t stream) {
  const int n_sm = count_sms();
  for (size_t begin = 0; begin < products.size();) {
    // A launch takes products of one form, in the order given.
    const WeightForm form = products[begin].weight->form;
    size_t end = begin;
    int64_t strips = 0;
    while (end < products.size() && end - begin < kMaxProducts && products[end].weight->form == form) {
      strips += n_strip(products[end++].weight->n_out);
    }
    Job job{.products = {},
            .n_product = static_cast<int>(end - begin),
            .n_row = static_cast<int>(acts.n_row),
            .n_units = static_cast<int>(n_unit(acts.n_in)),
            .split = split_of(strips, n_unit(acts.n_in), n_sm),
            .acts = acts_of(acts)};
    int64_t blocks = 0;
    const int per_block = kWarps / job.split;
    for (size_t i = begin; i < end; ++i) {
      const Product& p = products[i];
      job.products[i - begin] = {p.weight->data, p.y, p.add, static_cast<int32_t>(p.weight->n_out),
                                 static_cast<int32_t>(blocks)};
      blocks += (n_strip(p.weight->n_out) + per_block - 1) / per_block;
    }
    with_form(form, [&]<WeightForm kForm>() { launch_few<kForm>(job, blocks, stream); });
    begin = end;
  }
}

void matmul_experts_integer(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                            const ExpertGroups& groups, gpuStream_t stream) {
  const auto same_shape = [](const DeviceWeight& a, const DeviceWeight& b) {
    return a.form == b.form && a.n_out == b.n_out;
  };
  for (size_t begin = 0; begin < products.size();) {
    const DeviceWeight& weight = *products[begin].weight;
    const int64_t strips = n_strip(weight.n_out), units = n_unit(weight.n_in);
    ExpertJob job{};
    unsigned n = 0;
    while (n < kMaxExpertProducts && begin < products.size() && same_shape(weight, *products[begin].weight)) {
      job.data[n] = products[begin].weight->data;
      job.y[n++] = products[begin++].y;
    }
    job.expert_bytes = weight.expert_bytes;
    job.n_out = static_cast<int>(weight.n_out);
    job.n_units = static_cast<int>(units);
    job.split = split_of(strips * groups.n_used, units, count_sms());
    job.n_expert = static_cast<int>(groups.n_expert);
    job.n_pair = static_cast<int>(groups.n_row);
    job.n_used = static_cast<int>(groups.n_used);
    job.per_input = static_cast<int>(shared_input ? groups.n_used : 1);
    job.ids = groups.ids;
    job.offsets = groups.offsets;
    job.order = groups.order;
    job.acts = acts_of(acts);
    const int64_t per_block = kWarps / job.split, chunks = std::min(groups.n_row, groups.n_row / 8 + groups.n_expert);
    const dim3 grid(static_cast<unsigned>((strips + per_block - 1) / per_block), static_cast<unsigned>(chunks), n);
    with_form(weight.form,
              [&]<WeightForm kForm>() { launch_with_ring(kForm, 1, multiply_few_experts<kForm>, grid, stream, job); });
  }
}

}  // namespace onebit::cuda
