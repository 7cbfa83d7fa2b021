// Rows of f32 -> quantised activations (acts.h), with the norms and gates that come before and the rotation, in one
// pass. Values are those of backend/ref/act.cpp bit for bit, given the same f32 row.
//
// One warp a unit of 128 columns, a lane 4 of them, so 8 lanes a block of 32: butterflies 1 and 2 inside a lane, 4, 8,
// 16 by shuffles. Cost: 4 bytes read (8 with a gate) and 1.2 (integer) or 2 (f16) written per value; at decoding the
// latency of one row counts, which is why few rows are spread over several blocks.
#include <algorithm>
#include <type_traits>

#include "backend/gpu/acts.h"

namespace onebit::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kAlign = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

struct QuantizeJob {
  ActsInput input;
  bool rotate;
  ActsMix mix;
  const uint8_t* int4_rows;
  int64_t multiple;
  int64_t n_in, n_units, t_rows;  // T
  DeviceActs to;
};

__device__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Four {
  float v[4];
};
__device__ Four load_four(const float* p) {
  const float4 x = *reinterpret_cast<const float4*>(p);
  return {{x.x, x.y, x.z, x.w}};
}

/// x, or silu(x) * up.
__device__ Four first_value(const ActsInput& input, int64_t at) {
  Four x = load_four(input.x + at);
  if (!input.up) return x;
  const Four up = load_four(input.up + at);
#pragma unroll
  for (int i = 0; i < 4; ++i) x.v[i] = x.v[i] * sigmoid_of(x.v[i]) * up.v[i];
  return x;
}

__device__ float square_sum(const Four& x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = fmaf(x.v[i], x.v[i], sum);
  return sum;
}

/// Root mean squares of the row's groups into rms [n_in / group]; nothing when a group is a unit (done on the way).
__device__ void find_rms(const QuantizeJob& job, int64_t row, float* rms, float* partial) {
  const ActsInput& input = job.input;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (input.group == job.n_in) {
    constexpr int kBatch = 8;  // loads under way at once: their latency is what a row costs
    float sum = 0;
    for (int64_t first = threadIdx.x * 4; first < job.n_in; first += kThreads * 4 * kBatch) {
      Four x[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int64_t c = first + b * kThreads * 4;
        x[b] = c < job.n_in ? first_value(input, row * job.n_in + c) : Four{};
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) sum += square_sum(x[b]);
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    const float total = warp_sum(lane < kWarps ? partial[lane] : 0.0f);
    if (threadIdx.x == 0) rms[0] = sqrtf(total / static_cast<float>(input.group) + input.eps);
  } else {
    for (int64_t g = warp; g < job.n_in / input.group; g += kWarps) {
      float sum = 0;
      for (int64_t c = lane; c < input.group; c += kWarp) {
        const int64_t at = row * job.n_in + g * input.group + c;
        float x = input.x[at];
        if (input.up) x = x * sigmoid_of(x) * input.up[at];
        sum = fmaf(x, x, sum);
      }
      sum = warp_sum(sum);
      if (lane == 0) rms[g] = sqrtf(sum / static_cast<float>(input.group) + input.eps);
    }
  }
  __syncthreads();
}

__device__ void rotate_block(Four& x, int lane) {
  const float a = x.v[0] + x.v[1], b = x.v[0] - x.v[1], c = x.v[2] + x.v[3], d = x.v[2] - x.v[3];
  x = {{a + c, b + d, a - c, b - d}};
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = shfl_xor(x.v[i], stride);
      x.v[i] = lane & stride ? other - x.v[i] : x.v[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x.v[i] *= 0.17677669529663687f;  // 1 / sqrt(32)
}

/// The values of columns c..c+3 that are to be quantised; `unit_norm`: a norm over this warp's 128 columns.
__device__ Four prepared(const QuantizeJob& job, int64_t row, int64_t c, bool inside, bool unit_norm,
                         const float* rms) {
  const ActsInput& input = job.input;
  const int64_t at = row * job.n_in + c;
  Four x{};
  if (inside) x = first_value(input, at);
  if (input.norm) {
    float divisor = 1;
    if (unit_norm) {
      divisor = sqrtf(warp_sum(square_sum(x)) / static_cast<float>(kUnitColumns) + input.eps);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!inside) break;
      const int64_t column = c + i;
      const bool whole = input.group == job.n_in;
      if (!unit_norm) divisor = rms[whole ? 0 : column / input.group];
      x.v[i] = x.v[i] / divisor * input.norm[whole ? column : column % input.group];
    }
  }
  if (inside && input.silu_gate) {
    const Four gate = load_four(input.silu_gate + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) x.v[i] *= gate.v[i] * sigmoid_of(gate.v[i]);
  }
  if (inside && input.sigmoid_gate) {
    const Four gate = load_four(input.sigmoid_gate + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) x.v[i] *= sigmoid_of(gate.v[i]);
  }
  if (inside && input.keep) *reinterpret_cast<float4*>(input.keep + at) = {x.v[0], x.v[1], x.v[2], x.v[3]};
  return x;
}

/// The grids of plan/op.h.
enum class Grid : uint8_t { int8, int4_amax, int4_extreme, int4_search };

/// What the 4 values of 8 lanes are coded with: code = nearest(x * factor * step).
struct Steps {
  float factor, step, scale;
};

/// Sum over a block's 32 elements in their order, in all of its 8 lanes: the sums go from lane to lane.
__device__ float sum_in_order(const float (&x)[4], int lane) {
  float sum = 0;
#pragma unroll
  for (int from = 0; from < 8; ++from) {
    sum = shfl(sum + x[0] + x[1] + x[2] + x[3], (lane & 24) + from);
  }
  return sum;
}

/// Added to a float below 2^22 it leaves the nearest whole number (even on ties) in the low bits of the sum, in two's
/// complement: full rate, unlike the conversion instructions.
constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23

__device__ float nearest_even(float x) { return (x + kWhole) - kWhole; }
/// Half away from zero.
__device__ float nearest_away(float x) {
  const float r = nearest_even(x), rest = x - r;  // exact
  return rest == 0.5f && x > 0 ? r + 1 : rest == -0.5f && x < 0 ? r - 1 : r;
}
/// Half to even, in [-8, 7].
__device__ float signed_code(float u) { return fminf(7.0f, fmaxf(-8.0f, nearest_even(u))); }

/// The least-squares scale among four steps; x without NaN, unit = -1 / extreme.
__device__ Steps search_steps(const Four& x, float unit, float extreme, int lane) {
  Steps best{unit, 8, extreme / -8};
  float best_gain = -1;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float step = c == 0 ? 7.0f : c == 1 ? 7.5f : c == 2 ? 8.0f : 8.7f;
    float uq[4], qq = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float u = x.v[i] * unit, q = signed_code(u * step);
      uq[i] = u * q;
      qq += q * q;  // whole numbers: exact in any order
    }
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) qq += shfl_xor(qq, mask);
    const float sum = sum_in_order(uq, lane), gain = sum * sum / qq;
    if (!(gain > best_gain)) continue;
    best_gain = gain;
    best = {unit, step, -(extreme * (sum / qq))};
  }
  return best;
}

/// The block's element of largest magnitude, the first one on ties.
__device__ float find_extreme(const Four& x, float amax, int lane) {
  int first = 32;
  float mine = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    if (fabsf(x.v[i]) != amax) continue;
    first = lane % 8;
    mine = x.v[i];
  }
#pragma unroll
  for (int mask = 1; mask < 8; mask *= 2) first = min(first, shfl_xor(first, mask));
  return shfl(mine, (lane & 24) + first % 8);
}

/// Four codes in a word, and the scale of the block that 8 lanes share.
__device__ uint32_t encode(Four x, Grid grid, int lane, float& scale) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (isnan(x.v[i])) x.v[i] = 0;
    amax = fmaxf(amax, fabsf(x.v[i]));
  }
#pragma unroll
  for (int mask = 1; mask < 8; mask *= 2) amax = fmaxf(amax, shfl_xor(amax, mask));
  const bool by_amax = grid == Grid::int8 || grid == Grid::int4_amax;
  const float high = grid == Grid::int8 ? 127.0f : 7.0f, low = grid == Grid::int8 ? -127.0f : -8.0f;
  Steps steps{high / amax, 1, amax / high};
  if (!by_amax) {  // every lane takes the same way: shuffles inside
    const float extreme = find_extreme(x, amax, lane), unit = -1 / extreme;
    steps = grid == Grid::int4_search ? search_steps(x, unit, extreme, lane) : Steps{unit, 8, extreme / -8};
  }
  const bool empty = amax < 0x1p-100f, infinite = isinf(amax);
  scale = empty ? 0.0f : infinite ? amax : steps.scale;
  if (empty || infinite) return 0;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float code = by_amax ? fminf(fmaxf(nearest_away(x.v[i] * steps.factor), low), high)
                               : signed_code(x.v[i] * steps.factor * steps.step);
    word |= (__float_as_uint(code + kWhole) & 255) << 8 * i;
  }
  return word;
}

/// One unit's integer form.
__device__ void put_integers(const QuantizeJob& job, int64_t row, int64_t unit, uint32_t word, float scale) {
  const int lane = threadIdx.x % kWarp, block = lane / 8, m = lane % 8, c = m % 4, upper = m / 4;
  const int64_t t = job.t_rows, at = unit * t + row;
  uint8_t* codes = reinterpret_cast<uint8_t*>(job.to.codes) + ((unit * 2 + block / 2) * t + row) * 64;
  *reinterpret_cast<uint32_t*>(codes + c * 16 + (block % 2 * 2 + upper) * 4) = word;
  int sum = dot4(static_cast<int>(word), 0x01010101, 0);
  sum += shfl_xor(sum, 1);
  sum += shfl_xor(sum, 2);
  const int both = sum + shfl_xor(sum, 4);
  if (c == 0) job.to.half_sums[at * 8 + block * 2 + upper] = static_cast<int16_t>(sum);
  if (m == 0) {
    job.to.scales[at * 4 + block] = scale;
    job.to.starts[at * 4 + block] = static_cast<int16_t>(-8 * both);
  }
}

/// One unit's nibble form.
__device__ void put_nibbles(const QuantizeJob& job, int64_t row, int64_t unit, uint32_t word, float scale) {
  const int lane = threadIdx.x % kWarp, block = lane / 8, m = lane % 8;
  const uint32_t high = shfl_xor(word, 4);
  const int64_t at = (unit * job.t_rows + row) * 4;
  if (m < 4) {
    reinterpret_cast<uint32_t*>(job.to.nibbles)[(at + m) * 4 + block] = (word & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu)
                                                                                                   << 4;
  }
  if (m == 0) job.to.nibble_scales[at + block] = scale;
}

/// The row's codes and block scales in shared memory -> halves. A thread makes 16 columns, two chunks.
__device__ void put_halves(const QuantizeJob& job, int64_t row, const uint8_t* codes, const float* scales,
                           float row_scale) {
  const int64_t atoms = job.t_rows / kActAtomRows;
  const int r = static_cast<int>(row % kActAtomRows);
  for (int64_t i = threadIdx.x; i < job.n_units * 8; i += kThreads) {
    const float ratio = row_scale > 0 ? scales[i / 2] / row_scale : 0.0f;
    const uint4 words = reinterpret_cast<const uint4*>(codes)[i];
    const uint32_t four[4] = {words.x, words.y, words.z, words.w};
    __half2 even[4], odd[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const auto value = [&](int byte) {
        return static_cast<float>(static_cast<int8_t>(four[w] >> 8 * byte & 255)) * ratio;
      };
      even[w] = __floats2half2_rn(value(0), value(2));
      odd[w] = __floats2half2_rn(value(1), value(3));
    }
    uint8_t* to = job.to.halves + ((i / 4) * atoms + row / kActAtomRows) * kActAtomBytes + r * 128;
    const int chunk = static_cast<int>(i % 4) * 2;
    *reinterpret_cast<uint4*>(to + ((chunk ^ r) * 16)) = *reinterpret_cast<const uint4*>(even);
    *reinterpret_cast<uint4*>(to + (((chunk + 1) ^ r) * 16)) = *reinterpret_cast<const uint4*>(odd);
  }
  if (threadIdx.x == 0) job.to.row_scales[row] = row_scale;
}

/// The norm's weights of a unit come while the kernel before ends.
__device__ void prefetch_norm(const QuantizeJob& job, int64_t unit) {
  const int64_t at = unit * kUnitColumns + threadIdx.x % kWarp * 4;
  if (job.input.norm && at < job.n_in) prefetch(job.input.norm + at % job.input.group);
}

/// Grid [row, part of the units]. Shared memory: rms [n_group], and with halves codes [K] and scales [K/32].
__global__ void __launch_bounds__(kThreads, 4)
    quantize_rows(QuantizeJob job, int64_t units_per_block, int64_t rms_bytes) {
  prefetch_norm(job, blockIdx.y * units_per_block + threadIdx.x / kWarp);
  wait_for_previous();
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float partial[kWarps];
  float* rms = reinterpret_cast<float*>(shared);
  uint8_t* codes = shared + rms_bytes;
  float* scales = reinterpret_cast<float*>(codes + job.n_units * kUnitColumns);
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bool unit_norm = job.input.norm && job.input.group == kUnitColumns;
  if (job.input.norm && !unit_norm) find_rms(job, row, rms, partial);
  const bool int4 = job.mix == ActsMix::int4 || (job.mix == ActsMix::mixed && job.int4_rows[row / job.multiple] != 0);
  const Grid grid = !int4                                      ? Grid::int8
                    : job.input.int4_rule == Int4Rule::amax    ? Grid::int4_amax
                    : job.input.int4_rule == Int4Rule::extreme ? Grid::int4_extreme
                                                               : Grid::int4_search;
  const int64_t end = min((blockIdx.y + 1) * units_per_block, job.n_units);
  float largest = 0;
  for (int64_t unit = blockIdx.y * units_per_block + warp; unit < end; unit += kWarps) {
    const int64_t c = unit * kUnitColumns + lane * 4;
    Four x = prepared(job, row, c, c < job.n_in, unit_norm, rms);
    if (job.rotate) rotate_block(x, lane);
    float scale;
    const uint32_t word = encode(x, grid, lane, scale);
    if (job.to.codes) put_integers(job, row, unit, word, scale);
    if (job.to.nibbles) put_nibbles(job, row, unit, word, scale);
    if (job.to.halves) {
      reinterpret_cast<uint32_t*>(codes)[unit * kWarp + lane] = word;
      if (lane % 8 == 0) scales[unit * 4 + lane / 8] = scale;
      largest = fmaxf(largest, fabsf(scale));
    }
  }
  if (!job.to.halves) return;
  __syncthreads();  // partial is read by find_rms before
  largest = warp_max(largest);
  if (lane == 0) partial[warp] = largest;
  __syncthreads();
  put_halves(job, row, codes, scales, warp_max(lane < kWarps ? partial[lane] : 0.0f));
}

}  // namespace

int64_t tiled_acts_bytes(int64_t max_rows, int64_t n_in, bool nibbles) {
  const int64_t columns = n_unit(n_in) * kUnitColumns;
  const int64_t coded = padded_rows(std::min(max_rows, kCodeRows)), all = padded_rows(max_rows);
  return aligned(coded * columns) + 3 * aligned(coded * columns / 8) + aligned(all * columns * 2) + aligned(all * 4) +
         (nibbles ? aligned(all * columns / 2) + aligned(all * columns / 8) : 0);
}

DeviceActs tiled_acts_at(uint8_t* memory, int64_t max_rows, int64_t n_row, int64_t n_in, ActsMix mix, bool nibbles) {
  const int64_t columns = n_unit(n_in) * kUnitColumns;
  const int64_t coded = padded_rows(std::min(max_rows, kCodeRows)), all = padded_rows(max_rows);
  DeviceActs acts{.n_row = n_row, .n_in = n_in, .mix = mix};
  // Takes a part's memory; a form that these rows don't have stays null.
  const auto take = [&](auto*& part, int64_t bytes, bool used) {
    if (used) part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(memory);
    memory += aligned(bytes);
  };
  const bool integers = n_row <= kCodeRows, halves = n_row > kIntegerRows;
  take(acts.codes, coded * columns, integers);
  take(acts.scales, coded * columns / 8, integers);
  take(acts.starts, coded * columns / 8, integers);
  take(acts.half_sums, coded * columns / 8, integers);
  take(acts.halves, all * columns * 2, halves);
  take(acts.row_scales, all * 4, halves);
  if (nibbles) {
    take(acts.nibbles, all * columns / 2, halves && mix == ActsMix::int4);
    take(acts.nibble_scales, all * columns / 8, halves && mix == ActsMix::int4);
  }
  return acts;
}

void quantize_tiled(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                    const DeviceActs& acts, gpuStream_t stream) {
  if (acts.n_row == 0) return;
  QuantizeJob job{input, rotate, acts.mix, int4_rows, multiple, acts.n_in, n_unit(acts.n_in), padded_rows(acts.n_row),
                  acts};
  const bool unit_norm = input.norm && input.group == kUnitColumns;
  const int64_t rms_bytes = input.norm && !unit_norm ? (acts.n_in / input.group * 4 + 15) / 16 * 16 : 0;
  const int64_t shared = rms_bytes + (acts.halves ? job.n_units * (kUnitColumns + 16) : 0);
  // Few rows: several blocks a row, each of which adds up the row's squares for itself.
  const int64_t per_block = acts.halves ? job.n_units : kWarps;
  const dim3 grid(static_cast<unsigned>(acts.n_row), static_cast<unsigned>((job.n_units + per_block - 1) / per_block));
  if (shared > 48 * 1024) {
    check(gpuFuncSetAttribute(reinterpret_cast<const void*>(quantize_rows), gpuFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared)),
          "quantising activations");
  }
  launch(quantize_rows, grid, dim3(kThreads), static_cast<size_t>(shared), stream, job, per_block, rms_bytes);
}

}  // namespace onebit::gpu
