// Products of few rows with the matrices of their experts, on integers; integer_unit.cuh has the arithmetic.
//
// Rows of one expert, 8 at most, are a tile; every tile has all strips of every product. A block has a share of all
// strips of all tiles; their units are divided evenly among its warps, wherever strips begin, as in matmul_integer.cu.
// Which experts are used the kernel before decides, so rings can't fill earlier.
#include <algorithm>

#include "backend/cuda/experts.cuh"
#include "backend/cuda/integer_unit.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/unit_ring.cuh"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kWarps = 16, kThreads = kWarps * kWarp;
constexpr int kMaxExpertProducts = 2;
constexpr int kMostStagedBytes = 64 * 1024;  // more rows are read from memory

/// Products of one shape.
struct ExpertJob {
  const uint8_t* data[kMaxExpertProducts];
  float* y[kMaxExpertProducts];
  int64_t expert_bytes;
  int n_product, n_out, n_strip, n_unit;
  RingShape ring;
  int n_expert, n_pair, n_used, per_input;  // pairs per row of the input
  const int32_t *ids, *offsets, *order;
  int n_staged;  // rows of the input in shared memory, all or none
  Acts acts;

  __device__ bool one_token() const { return n_pair == n_used; }  // whose experts differ
  __device__ int strips_of_tile() const { return n_product * n_strip; }
};

/// The number of tiles of 8 rows; called by whole warps.
__device__ int count_tiles(const ExpertJob& job, int lane) {
  if (job.one_token()) return job.n_used;
  int tiles = 0;
  for (int e = lane; e < job.n_expert; e += kWarp) tiles += (job.offsets[e + 1] - job.offsets[e] + 7) / 8;
  return warp_sum(tiles);
}

/// The units of all strips of all tiles, one after another, in chunks. A warp-wide object: tiles are looked up
/// together.
template <WeightForm kForm>
struct ExpertWalk {
  int index, tile_index, product, strip, unit, left;  // left: units to walk
  ExpertTile tile;
  const uint8_t* at;

  __device__ ExpertWalk(const ExpertJob& job, int first_strip, int begin, int end, int lane)
      : index(first_strip + begin / job.n_unit), tile_index(-1), unit(begin % job.n_unit), left(end - begin) {
    if (left > 0) find(job, lane);
  }
  __device__ void find(const ExpertJob& job, int lane) {
    const int now = index / job.strips_of_tile(), in_tile = index % job.strips_of_tile();
    product = in_tile / job.n_strip;
    strip = in_tile % job.n_strip;
    if (now != tile_index) {
      tile_index = now;
      tile = job.one_token() ? ExpertTile{.expert = job.ids[now], .first = now, .count = 1}
                             : find_expert_tile<8>(job.offsets, job.n_expert, now, lane);
    }
    at = job.data[product] + tile.expert * job.expert_bytes +
         (static_cast<int64_t>(strip) * job.n_unit + unit) * unit_bytes(kForm);
  }
  __device__ int count(const ExpertJob& job) const { return min(job.ring.chunk, min(left, job.n_unit - unit)); }
  __device__ void next(const ExpertJob& job, int n, int lane) {
    at += n * unit_bytes(kForm);
    unit += n;
    left -= n;
    if (unit < job.n_unit) return;
    unit = 0;
    ++index;
    if (left > 0) find(job, lane);
  }
  /// Result row of the tile's row i (or its last).
  __device__ int pair_of(const ExpertJob& job, int i) const {
    const int row = tile.first + min(i, tile.count - 1);
    return job.one_token() ? row : job.order[row];
  }
};

template <WeightForm kForm>
__device__ void store(const ExpertJob& job, const ExpertWalk<kForm>& walk, const float (&sums)[4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i % 2, n = walk.strip * kStripRows + lane / 4 + i / 2 * 8;
    if (row >= walk.tile.count || n >= job.n_out) continue;
    job.y[walk.product][static_cast<int64_t>(walk.pair_of(job, row)) * job.n_out + n] = sums[i];
  }
}

template <WeightForm kForm>
__global__ void __launch_bounds__(kThreads + 4 * kWarp, 1) multiply_experts(const __grid_constant__ ExpertJob job) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Piece<1> pieces[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  UnitRing<kForm> ring(shared, warp, lane, job.ring);
  wait_for_previous();
  const int n_all = count_tiles(job, lane) * job.strips_of_tile(), n_block = static_cast<int>(gridDim.x);
  const auto strips_before = [&](int b) { return static_cast<int>(static_cast<unsigned>(n_all * b) / n_block); };
  const int first_strip = strips_before(blockIdx.x);
  const int n = (strips_before(blockIdx.x + 1) - first_strip) * job.n_unit;
  if (n == 0) return;
  const auto units_before = [&](int w) { return n * w / kWarps; };
  const int begin = units_before(warp), end = units_before(warp + 1);

  ExpertWalk<kForm> ahead(job, first_strip, begin, end, lane), walk = ahead;
  for (int i = 0; i < job.ring.depth; ++i) {
    const int count = ahead.count(job);
    ring.start(i, ahead.at, count, lane);
    if (count > 0) ahead.next(job, count, lane);
  }
  const StagedActs<kForm> acts(shared + kWarps * ring_bytes(kForm, job.ring), job.n_unit, job.n_staged);
  acts.stage(job.acts, 0, job.n_unit, kThreads, [](int i) { return i; });
  const uint32_t code_pair = acts.code_pair(), record_block = acts.record_block();
  const uint32_t all_codes = acts.code_address() + lane % 4 * 16, all_records = acts.record_address();
  __syncthreads();

  float sums[1][4] = {};
  bool whole = walk.unit == 0;  // the warp has the strip's first unit
  int tile = -1, b_row = 0, c_row[2] = {};
  while (walk.left > 0) {
    if (tile != walk.tile_index) {
      tile = walk.tile_index;
      b_row = walk.pair_of(job, lane / 4) / job.per_input;
      c_row[0] = walk.pair_of(job, lane % 4 * 2) / job.per_input;
      c_row[1] = walk.pair_of(job, lane % 4 * 2 + 1) / job.per_input;
    }
    const int count = walk.count(job);
    const uint32_t from = ring.wait();
    for (int i = 0; i < count; ++i) {
      Unit<kForm> weights;
      weights.load_shared(from + i * unit_bytes(kForm), lane);
      const int unit = walk.unit + i;
      if (job.n_staged > 0) {
        const uint32_t codes = all_codes + unit * 2 * code_pair + b_row * 64;
        const uint32_t records = all_records + unit * 4 * record_block;
        multiply_unit<kForm, 1>(
            weights, [&](int, int pair) { return read_shared_16(codes + pair * code_pair); },
            [&](int, int block) {
              const uint32_t of_block = records + block * record_block;
              return TwoRecords<kForm>(of_block + c_row[0] * acts.kRecord, of_block + c_row[1] * acts.kRecord);
            },
            sums);
      } else {
        const uint8_t* codes =
            job.acts.codes + (static_cast<int64_t>(unit) * 2 * job.acts.t_rows + b_row) * 64 + lane % 4 * 16;
        multiply_unit<kForm, 1>(
            weights,
            [&](int, int pair) { return *reinterpret_cast<const uint4*>(codes + pair * job.acts.t_rows * 64); },
            [&](int, int block) { return TwoRecords<kForm>(job.acts, unit, c_row[0], c_row[1], block); }, sums);
      }
    }
    const int more = ahead.count(job);
    ring.release(ahead.at, more, lane);
    if (more > 0) ahead.next(job, more, lane);
    if (walk.unit + count == job.n_unit) {
      if (whole) {
        store(job, walk, sums[0], lane);
      } else {
        put<1>(pieces[warp], sums, lane);
      }
      sums[0][0] = sums[0][1] = sums[0][2] = sums[0][3] = 0;
      whole = true;
    }
    walk.next(job, count, lane);
  }
  const bool divided = begin < end && walk.unit > 0;  // the last strip goes on in the next warp
  if (divided && !whole) put<1>(pieces[warp], sums, lane);
  __syncthreads();
  if (!divided || !whole) return;
  const int strip_end = (walk.index + 1 - first_strip) * job.n_unit;
  for (int w = warp + 1; w < kWarps && units_before(w) < strip_end; ++w) {
    if (units_before(w) < units_before(w + 1)) add<1>(pieces[w], sums, lane);
  }
  store(job, walk, sums[0], lane);
}

template <WeightForm kForm>
void launch_experts(ExpertJob job, int n_input, const ChipFacts& chip, gpuStream_t stream) {
  const int staged = StagedActs<kForm>::bytes(job.n_unit, n_input);
  const int room = chip.shared_bytes - kWarps * static_cast<int>(sizeof(Piece<1>)) - 16;
  const auto ring_beside = [&](int bytes) { return ring_for(kForm, (room - bytes) / kWarps, chip.major >= 9); };
  const bool stages = staged <= kMostStagedBytes && ring_beside(staged).depth > 0;
  job.n_staged = stages ? n_input : 0;
  job.ring = ring_beside(stages ? staged : 0);
  check(job.ring.depth > 0 ? cudaSuccess : cudaErrorInvalidConfiguration, "cutting a product");
  launch_team(multiply_experts<kForm>, chip.n_sm, kThreads,
              kWarps * ring_bytes(kForm, job.ring) + (stages ? staged : 0) + 16, 1, stream, job);
}

}  // namespace

void matmul_experts_integer(std::span<const ExpertProduct> products, const DeviceActs& acts, bool shared_input,
                            const ExpertGroups& groups, gpuStream_t stream) {
  const ChipFacts chip = chip_facts();
  const auto same_shape = [](const DeviceWeight& a, const DeviceWeight& b) {
    return a.form == b.form && a.n_out == b.n_out;
  };
  for (size_t begin = 0; begin < products.size();) {
    const DeviceWeight& weight = *products[begin].weight;
    ExpertJob job{};
    while (job.n_product < kMaxExpertProducts && begin < products.size() &&
           same_shape(weight, *products[begin].weight)) {
      job.data[job.n_product] = products[begin].weight->data;
      job.y[job.n_product++] = products[begin++].y;
    }
    job.expert_bytes = weight.expert_bytes;
    job.n_out = static_cast<int>(weight.n_out);
    job.n_strip = static_cast<int>(n_strip(weight.n_out));
    job.n_unit = static_cast<int>(n_unit(weight.n_in));
    job.n_expert = static_cast<int>(groups.n_expert);
    job.n_pair = static_cast<int>(groups.n_row);
    job.n_used = static_cast<int>(groups.n_used);
    job.per_input = static_cast<int>(shared_input ? groups.n_used : 1);
    job.ids = groups.ids;
    job.offsets = groups.offsets;
    job.order = groups.order;
    job.acts = acts_of(acts);
    with_form(weight.form,
              [&]<WeightForm kForm>() { launch_experts<kForm>(job, static_cast<int>(acts.n_row), chip, stream); });
  }
}

}  // namespace onebit::cuda
