#include "backend/gpu/blocks.cuh"
#include "backend/gpu/device.cuh"
#include "backend/gpu/matmul_plain.h"

namespace onebit::gpu {
namespace {

constexpr int kWarps = 8;    // of a block; more than 2^19 weight rows do not fit the grid
constexpr int kRowTile = 8;  // result rows that share one reading of a weight row
constexpr int kMaxThreads = 256;

/// Where the weights and the input of result row r are; ids is null for plain products.
struct Rows {
  const int32_t* ids;
  int64_t n_used;  // result rows per input row
  int64_t n_out, expert_bytes;
};

/// One warp: weight row n against result rows [r0, r0 + kRowTile) (one row when each has its own expert). Lane l takes
/// groups l, l + 32, ... Bytes: a weight row per kRowTile rows; 32 multiplies an 8-instruction group and row.
template <BlockType kType>
__global__ void matmul_codes(const uint8_t* weight, Rows rows, int64_t row_bytes, const int8_t* codes,
                             const float* scales, int64_t n_group, int64_t n_row, float* y, const float* add) {
  wait_for_previous();
  const int lane = threadIdx.x % kWarp;
  const int64_t n = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarp;
  if (n >= rows.n_out) return;
  const int64_t step = rows.ids ? 1 : kRowTile, r0 = blockIdx.x * step;
  const int count = static_cast<int>(min(step, n_row - r0));
  const uint8_t* row = weight + (rows.ids ? rows.ids[r0] * rows.expert_bytes : 0) + n * row_bytes;
  float total[kRowTile] = {};
  for (int64_t g = lane; g < n_group; g += kWarp) {
    Codes32 w;
    read_codes32<kType>(row, g, w);
#pragma unroll
    for (int i = 0; i < kRowTile; ++i) {
      if (i >= count) break;
      const int64_t at = (r0 + i) / rows.n_used * n_group + g;
      const int* a = reinterpret_cast<const int*>(codes + at * 32);
      int products[2] = {}, sums[2] = {};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        products[j / 4] = dot4(a[j], w.packed[j], products[j / 4]);
        if (has_min(kType)) sums[j / 4] = dot4(a[j], 0x01010101, sums[j / 4]);
      }
      if (!by_16(kType)) {
        products[0] += products[1];
        sums[0] += sums[1];
      }
#pragma unroll
      for (int k = 0; k < (by_16(kType) ? 2 : 1); ++k) {
        total[i] += static_cast<float>(products[k]) * w.scale[k] * scales[at];
        if (has_min(kType)) total[i] -= static_cast<float>(sums[k]) * w.min[k] * scales[at];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRowTile; ++i) {
    if (i >= count) break;
    const float sum = warp_sum(total[i]);
    const int64_t at = (r0 + i) * rows.n_out + n;
    if (lane == 0) y[at] = add ? sum + add[at] : sum;
  }
}

/// As matmul_codes for float weights and f32 inputs.
template <BlockType kType>
__global__ void matmul_floats(const uint8_t* weight, Rows rows, int64_t row_bytes, const float* x, int64_t n_in,
                              int64_t n_row, float* y, const float* add) {
  wait_for_previous();
  const int lane = threadIdx.x % kWarp;
  const int64_t n = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarp;
  if (n >= rows.n_out) return;
  const int64_t step = rows.ids ? 1 : kRowTile, r0 = blockIdx.x * step;
  const int count = static_cast<int>(min(step, n_row - r0));
  const uint8_t* row = weight + (rows.ids ? rows.ids[r0] * rows.expert_bytes : 0) + n * row_bytes;
  float total[kRowTile] = {};
  for (int64_t k = lane; k < n_in; k += kWarp) {
    const float w = read_float<kType>(row, k);
#pragma unroll
    for (int i = 0; i < kRowTile; ++i) {
      if (i < count) total[i] = fmaf(x[(r0 + i) / rows.n_used * n_in + k], w, total[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRowTile; ++i) {
    if (i >= count) break;
    const float sum = warp_sum(total[i]);
    const int64_t at = (r0 + i) * rows.n_out + n;
    if (lane == 0) y[at] = add ? sum + add[at] : sum;
  }
}

dim3 grid_of(const Rows& rows, int64_t n_row) {
  const int64_t step = rows.ids ? 1 : kRowTile;
  return dim3(static_cast<unsigned>((n_row + step - 1) / step),
              static_cast<unsigned>((rows.n_out + kWarps - 1) / kWarps));
}

Rows rows_of(const DeviceWeight& weight) { return {nullptr, 1, weight.n_out, weight.expert_bytes}; }

Rows rows_of(const DeviceWeight& weight, bool shared_input, const ExpertGroups& groups) {
  return {groups.ids, shared_input ? groups.n_used : 1, weight.n_out, weight.expert_bytes};
}

void run_codes(const DeviceWeight& weight, const Rows& rows, const DeviceActs& acts, int64_t n_row, float* y,
               const float* add, gpuStream_t stream) {
  if (n_row == 0) return;
  with_quantised_type(weight.type, [&]<BlockType kType>() {
    launch(matmul_codes<kType>, grid_of(rows, n_row), dim3(kWarps * kWarp), 0, stream, weight.data, rows,
           row_bytes(kType, weight.n_in), acts.codes, acts.scales, weight.n_in / 32, n_row, y, add);
  });
}

void run_floats(const DeviceWeight& weight, const Rows& rows, const float* x, int64_t n_row, float* y, const float* add,
                gpuStream_t stream) {
  if (n_row == 0) return;
  with_float_type(weight.type, [&]<BlockType kType>() {
    launch(matmul_floats<kType>, grid_of(rows, n_row), dim3(kWarps * kWarp), 0, stream, weight.data, rows,
           row_bytes(kType, weight.n_in), x, weight.n_in, n_row, y, add);
  });
}

// --- lookup ----------------------------------------------------------------------------------------------------------

template <BlockType kType>
__global__ void gather_codes(const uint8_t* table, int64_t row_bytes, const int32_t* ids, int64_t n_group, float* y) {
  wait_for_previous();
  const uint8_t* row = table + ids[blockIdx.x] * row_bytes;
  float* to = y + blockIdx.x * n_group * 32;
  const int64_t g = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;  // few groups a block: rows are few
  if (g < n_group) {
    Codes32 w;
    read_codes32<kType>(row, g, w);
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const float value = w.scale[j / 16] * static_cast<float>(w.code(j));
      to[g * 32 + j] = has_min(kType) ? value - w.min[j / 16] : value;
    }
  }
}

template <BlockType kType>
__global__ void gather_floats(const uint8_t* table, int64_t row_bytes, const int32_t* ids, int64_t n_in, float* y) {
  wait_for_previous();
  const uint8_t* row = table + ids[blockIdx.x] * row_bytes;
  for (int64_t i = threadIdx.x; i < n_in; i += blockDim.x) y[blockIdx.x * n_in + i] = read_float<kType>(row, i);
}

// --- quantisation ----------------------------------------------------------------------------------------------------

/// The grids of plan/op.h.
enum class Grid : uint8_t { int8, int4_amax, int4_extreme, int4_search };

__device__ Grid grid_of(Int4Rule rule) {
  return rule == Int4Rule::amax ? Grid::int4_amax : rule == Int4Rule::extreme ? Grid::int4_extreme : Grid::int4_search;
}

/// A lane's code and its block's scale.
struct Coded {
  int code;
  float scale;
};

/// The sum over the warp in the order of lanes.
__device__ float sum_in_order(float x) {
  float sum = 0;
  for (int i = 0; i < kWarp; ++i) sum += shfl(x, i);
  return sum;
}

__device__ float signed_code(float u) { return fminf(7.0f, fmaxf(-8.0f, rintf(u))); }

/// x is one of the warp's 32 values.
__device__ Coded encode(float x, Grid grid) {
  if (isnan(x)) x = 0;
  const float amax = warp_max(fabsf(x));
  if (amax < 0x1p-100f) return {0, 0};
  if (isinf(amax)) return {0, amax};
  if (grid == Grid::int8 || grid == Grid::int4_amax) {
    const float high = grid == Grid::int8 ? 127.0f : 7.0f, low = grid == Grid::int8 ? -127.0f : -8.0f;
    return {static_cast<int>(fminf(fmaxf(roundf(x * (high / amax)), low), high)), amax / high};
  }
  int first = fabsf(x) == amax ? static_cast<int>(threadIdx.x % kWarp) : kWarp;
  for (int mask = 1; mask < kWarp; mask *= 2) first = min(first, shfl_xor(first, mask));
  const float extreme = shfl(x, first), u = x * (-1 / extreme);
  float step = 8, scale = extreme / -8, gain = -1;
  for (int c = 0; grid == Grid::int4_search && c < 4; ++c) {
    const float tried = c == 0 ? 7.0f : c == 1 ? 7.5f : c == 2 ? 8.0f : 8.7f, q = signed_code(u * tried);
    const float uq = sum_in_order(u * q), qq = sum_in_order(q * q), reached = uq * uq / qq;
    if (!(reached > gain)) continue;
    gain = reached;
    step = tried;
    scale = -(extreme * (uq / qq));
  }
  return {static_cast<int>(signed_code(u * step)), scale};
}

/// One block a row; one warp a block of 32 columns, a lane a column.
__global__ void quantize_rows(ActsInput input, int64_t n_in, bool rotate, ActsMix mix, const uint8_t* int4_rows,
                              int64_t multiple, int8_t* codes, float* scales, int32_t* sums, uint8_t* nibbles) {
  wait_for_previous();
  GPU_DYNAMIC_SHARED(float, rms);  // [n_in / group]
  const int64_t r = blockIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warp = blockDim.x / kWarp;
  const auto value_at = [&](int64_t c) {
    const int64_t at = r * n_in + c;
    const float x = input.x[at];
    return input.up ? x * sigmoid_of(x) * input.up[at] : x;
  };
  if (input.norm) {
    for (int64_t g = warp; g < n_in / input.group; g += n_warp) {
      float sum = 0;
      for (int64_t c = lane; c < input.group; c += kWarp) {
        const float x = value_at(g * input.group + c);
        sum = fmaf(x, x, sum);
      }
      sum = warp_sum(sum);
      if (lane == 0) rms[g] = sqrtf(sum / static_cast<float>(input.group) + input.eps);
    }
    __syncthreads();
  }
  const bool int4 = mix == ActsMix::int4 || (mix == ActsMix::mixed && int4_rows[r / multiple] != 0);
  for (int64_t b = warp; b < n_in / 32; b += n_warp) {
    const int64_t c = b * 32 + lane, at = r * n_in + c;
    float v = value_at(c);
    if (input.norm) v = v / rms[c / input.group] * input.norm[c % input.group];
    if (input.silu_gate) v = v * (input.silu_gate[at] * sigmoid_of(input.silu_gate[at]));
    if (input.sigmoid_gate) v = v * sigmoid_of(input.sigmoid_gate[at]);
    if (input.keep) input.keep[at] = v;
    if (rotate) {
#pragma unroll
      for (int stride = 1; stride < 32; stride *= 2) {
        const float other = shfl_xor(v, stride);
        v = lane & stride ? other - v : v + other;
      }
      v *= 0.17677669529663687f;  // 1 / sqrt(32)
    }
    const Coded coded = encode(v, int4 ? grid_of(input.int4_rule) : Grid::int8);
    const int code = coded.code;
    codes[at] = static_cast<int8_t>(code);
    const int sum = warp_sum(code), upper = shfl_xor(code, 16);
    if (nibbles && lane < 16) {
      nibbles[(r * (n_in / 32) + b) * 16 + lane] = static_cast<uint8_t>((code & 15) | (upper & 15) << 4);
    }
    if (lane == 0) {
      scales[r * (n_in / 32) + b] = coded.scale;
      sums[r * (n_in / 32) + b] = sum;
    }
  }
}

}  // namespace

void quantize_plain(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                    const DeviceActs& acts, gpuStream_t stream) {
  if (acts.n_row == 0) return;
  const size_t shared = input.norm ? static_cast<size_t>(acts.n_in / input.group) * sizeof(float) : 0;
  launch(quantize_rows, dim3(static_cast<unsigned>(acts.n_row)), dim3(kMaxThreads), shared, stream, input, acts.n_in,
         rotate, acts.mix, int4_rows, multiple, acts.codes, acts.scales, acts.sums, acts.nibbles);
}

void gather_plain(const DeviceWeight& weight, const int32_t* ids, int64_t n_row, float* y, gpuStream_t stream) {
  if (n_row == 0) return;
  const dim3 grid(static_cast<unsigned>(n_row)), by_groups(grid.x, blocks_for(weight.n_in, 32 * 32));
  const bool done = with_quantised_type(weight.type,
                                        [&]<BlockType kType>() {
                                          launch(gather_codes<kType>, by_groups, dim3(32), 0, stream, weight.data,
                                                 row_bytes(kType, weight.n_in), ids, weight.n_in / 32, y);
                                        }) ||
                    with_float_type(weight.type, [&]<BlockType kType>() {
                      launch(gather_floats<kType>, grid, dim3(kMaxThreads), 0, stream, weight.data,
                             row_bytes(kType, weight.n_in), ids, weight.n_in, y);
                    });
  (void)done;
}

void matmul_plain(const Product& product, const DeviceActs& acts, gpuStream_t stream) {
  run_codes(*product.weight, rows_of(*product.weight), acts, acts.n_row, product.y, product.add, stream);
}

void matmul_float_plain(const Product& product, const float* x, int64_t n_row, gpuStream_t stream) {
  run_floats(*product.weight, rows_of(*product.weight), x, n_row, product.y, product.add, stream);
}

void matmul_experts_plain(const DeviceWeight& weight, const DeviceActs& acts, bool shared_input,
                          const ExpertGroups& groups, float* y, gpuStream_t stream) {
  run_codes(weight, rows_of(weight, shared_input, groups), acts, groups.n_row, y, nullptr, stream);
}

void matmul_experts_float_plain(const DeviceWeight& weight, const float* x, bool shared_input,
                                const ExpertGroups& groups, float* y, gpuStream_t stream) {
  run_floats(weight, rows_of(weight, shared_input, groups), x, groups.n_row, y, nullptr, stream);
}

}  // namespace onebit::gpu
