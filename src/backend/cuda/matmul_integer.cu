// Products for few rows, on integers: decoding, verifying, short prompts. integer_unit.cuh has the arithmetic.
//
// One block of 16 warps an SM, two blocks (a cluster) a team from sm_90 on. A team has a share of all strips of the
// launch; its strips' units, one after another, are divided evenly among its warps, wherever strips begin. So all SMs
// have the same work to within a half strip, and each warp streams one range of memory through its ring. Where a strip
// is divided among warps, the one with its first unit adds the others' sums, in their order; those of the team's other
// block are put into its shared memory.
//
// Weights don't depend on the kernel before: rings (some 140 KB an SM, 18 MB in all) fill while it still runs, which
// hides the kernels between two products. Then the rows are staged in shared memory. Where columns are many, each block
// of a team takes half of them for all of the team's strips, and stages only these; where even that would leave too
// little room for rings, columns are cut into several launches. Up to 8 rows all that depends on the weights alone: a
// row's result does not depend on the other rows.
//
// Cost for n4, a unit of 1,152 bytes: about 75 instructions a warp at one row, 100 at 8; at 16.5 bytes per clock and SM
// (4.3 TB/s at 1.98 GHz) a unit takes 70 clocks, 280 issue slots: memory decides, also with 16 rows.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/integer_unit.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/unit_ring.cuh"

namespace onebit::cuda {
namespace {

using namespace gpu;

constexpr int kWarps = 16, kThreads = kWarps * kWarp;
constexpr int kMaxProducts = 8;
constexpr int kManyUnits = 64;         // in a strip: they are divided between the blocks of a team
constexpr int kMostHalvedStrips = 16;  // of a team whose blocks divide columns

struct OneProduct {
  const uint8_t* data;
  float* y;
  const float* add;
  int32_t n_out, first_strip;
};
/// A launch: units [first_unit, first_unit + n_unit) of all strips.
struct Job {
  OneProduct products[kMaxProducts];
  int n_product, n_row, n_strip;
  int units_of_strip, first_unit, n_unit;
  int team;
  RingShape ring;
  bool halved;  // the blocks of a team have half of the units each
  Acts acts;

  __device__ const OneProduct& product_of(int strip) const {
    int p = 0;
    while (p + 1 < n_product && strip >= products[p + 1].first_strip) ++p;
    return products[p];
  }
};

/// The units [first, first + n) of all strips, one after another.
struct Columns {
  int first, n;
};
/// Chunks of units: as many as `most` at once, as long as they are of one strip.
template <WeightForm kForm>
struct Walk {
  Columns columns;
  int strip, unit, left;  // units left to walk
  const uint8_t* at;

  __device__ Walk(const Job& job, Columns columns, int first_strip, int begin, int end)
      : columns(columns),
        strip(first_strip + begin / columns.n),
        unit(begin % columns.n),
        left(end - begin),
        at(address(job)) {}
  __device__ const uint8_t* address(const Job& job) const {
    const OneProduct& product = job.product_of(strip);
    const int64_t units = static_cast<int64_t>(strip - product.first_strip) * job.units_of_strip;
    return product.data + (units + columns.first + unit) * unit_bytes(kForm);
  }
  __device__ int count(int most) const { return min(most, min(left, columns.n - unit)); }
  __device__ void next(const Job& job, int n) {
    at += n * unit_bytes(kForm);
    unit += n;
    left -= n;
    if (unit < columns.n) return;
    unit = 0;
    ++strip;
    at = address(job);
  }
};

/// Calls f(tile, i, place in y) for the results that a lane's sums are of.
template <int kTiles, class F>
__device__ void for_results(const Job& job, const OneProduct& product, int strip, int lane, F f) {
  const int first_out = (strip - product.first_strip) * kStripRows + lane / 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * t + lane % 4 * 2 + i % 2, n = first_out + i / 2 * 8;
      if (row < job.n_row && n < product.n_out) f(t, i, static_cast<int64_t>(row) * product.n_out + n);
    }
  }
}
/// What sums of a strip are added to.
template <int kTiles>
__device__ void load_base(const Job& job, int strip, float (&base)[kTiles][4], int lane) {
  const OneProduct& product = job.product_of(strip);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) base[t][0] = base[t][1] = base[t][2] = base[t][3] = 0;
  if (!product.add) return;
  for_results<kTiles>(job, product, strip, lane, [&](int t, int i, int64_t at) { base[t][i] = product.add[at]; });
}
template <int kTiles>
__device__ void store(const Job& job, int strip, const float (&sums)[kTiles][4], float factor,
                      const float (&base)[kTiles][4], int lane) {
  const OneProduct& product = job.product_of(strip);
  for_results<kTiles>(job, product, strip, lane,
                      [&](int t, int i, int64_t at) { product.y[at] = sums[t][i] * factor + base[t][i]; });
}

/// A launch's rows in shared memory, and a unit's product with them.
template <WeightForm kForm, int kRows, bool kPlain = has_plain_rows<kForm>()>
class LaunchRows {
 public:
  static constexpr int kTiles = (kRows + 7) / 8;
  static constexpr float kFactor = 1;

  static int bytes(int n_unit, int n_row) { return StagedActs<kForm>::bytes(n_unit, n_row); }
  __device__ LaunchRows(uint8_t* memory, const Job& job, Columns columns, int lane)
      : lane_(lane), acts_(memory, columns.n, job.n_row) {
    acts_.stage(job.acts, columns.first, columns.n, kThreads, [](int i) { return i; });
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      code_at_[t] = min(8 * t + lane / 4, job.n_row - 1) * 64 + lane % 4 * 16;
      record_at_[t] = min(8 * t + lane % 4 * 2, acts_.record_rows - 2) * acts_.kRecord;
    }
  }
  __device__ void multiply(uint32_t from, int unit, float (&sums)[kTiles][4]) const {
    Unit<kForm> weights;
    weights.load_shared(from, lane_);
    const uint32_t code_pair = acts_.code_pair(), record_block = acts_.record_block();
    const uint32_t codes = acts_.code_address() + unit * 2 * code_pair;
    const uint32_t records = acts_.record_address() + unit * 4 * record_block;
    multiply_unit<kForm, kTiles>(
        weights, [&](int t, int pair) { return read_shared_16(codes + pair * code_pair + code_at_[t]); },
        [&](int t, int block) { return TwoRecords<kForm>(records + block * record_block + record_at_[t]); }, sums);
  }

 private:
  int lane_;
  StagedActs<kForm> acts_;
  uint32_t code_at_[kTiles], record_at_[kTiles];
};
template <WeightForm kForm, int kRows>
class LaunchRows<kForm, kRows, true> {
 public:
  static constexpr int kTiles = (kRows + 7) / 8;
  static constexpr float kFactor = row_factor(kForm);

  static int bytes(int n_unit, int) { return PlainRows<kRows>::bytes(n_unit); }
  __device__ LaunchRows(uint8_t* memory, const Job& job, Columns columns, int lane) : lane_(lane) {
    const PlainRows<kRows> rows(memory, columns.n);
    rows.template stage<kThreads>(job.acts, columns.first, columns.n);
    code_at_ = shared_address(rows.codes) + lane % 4 * 16 + (kRows > 1 ? lane / 4 * 64 : 0);
    scale_at_ = shared_address(rows.scales) + (kRows > 1 ? lane % 4 * 32 : 0);
  }
  __device__ void multiply(uint32_t from, int unit, float (&sums)[kTiles][4]) const {
    Unit<kForm> weights;
    weights.load_shared(from, lane_);
    multiply_plain<kForm, kRows>(weights, code_at_ + unit * PlainRows<kRows>::kCodeUnit,
                                 scale_at_ + unit * PlainRows<kRows>::kScaleUnit, sums);
  }

 private:
  int lane_;
  uint32_t code_at_, scale_at_;
};

/// Shared memory of a block: rings; a piece for each warp of the team, those of the block's own warps first; rows. With
/// Job::halved the other block's places take both blocks' sums of every second strip of the team.
template <WeightForm kForm, int kRows>
struct SharedSizes {
  using Rows = LaunchRows<kForm, kRows>;
  __host__ __device__ static constexpr int pieces(int team) {
    return team * kWarps * static_cast<int>(sizeof(Piece<Rows::kTiles>));
  }
  static int fixed(int n_unit, int n_row, int team) { return pieces(team) + Rows::bytes(n_unit, n_row) + 16; }
};

template <int kTiles>
__device__ void clear(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0;
}

/// The barrier of a team. arrive(): what this thread has written before is to be seen by the team after its wait().
struct TeamBarrier {
  int team;

  __device__ void arrive() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (team > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }
  __device__ void wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (team > 1) {
      asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
      return;
    }
#endif
    __syncthreads();
  }
};
/// What block `rank` of the team has where this one has `own`.
template <class T>
__device__ inline T* of_block(T* own, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().map_shared_rank(own, rank);
#else
  (void)rank;
  return own;
#endif
}

/// Threads that registers are shared out for: with 8 rows some are left for the blocks of small kernels.
constexpr int registers_for(int rows) { return rows <= 8 ? kThreads + 4 * kWarp : kThreads; }

template <WeightForm kForm, int kRows>
__global__ void __launch_bounds__(registers_for(kRows), 1) multiply_few(const __grid_constant__ Job job) {
  using Rows = LaunchRows<kForm, kRows>;
  constexpr int kTiles = Rows::kTiles;
  let_next_start();
  const TeamBarrier barrier{job.team};
  barrier.arrive();  // blocks write into each other's memory once all have begun
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int rank = static_cast<int>(blockIdx.x) % job.team, team = static_cast<int>(blockIdx.x) / job.team;
  const int n_team = static_cast<int>(gridDim.x) / job.team;
  const auto strips_before = [&](int t) { return static_cast<int>(static_cast<unsigned>(job.n_strip * t) / n_team); };
  const int first_strip = strips_before(team), n_strip = strips_before(team + 1) - first_strip;
  const int half = (job.n_unit + 1) / 2;
  const Columns columns = !job.halved ? Columns{job.first_unit, job.n_unit}
                          : rank == 0 ? Columns{job.first_unit, half}
                                      : Columns{job.first_unit + half, job.n_unit - half};
  // The units of the strips are divided among n_warp warps, of which this is number `me`.
  const int n = n_strip * columns.n, n_warp = job.halved ? kWarps : job.team * kWarps;
  const int me = job.halved ? warp : rank * kWarps + warp;
  const int log_warps = n_warp == kWarps ? 4 : 5;
  static_assert(kWarps == 16);
  const auto units_before = [&](int w) { return n * w >> log_warps; };
  const int begin = units_before(me), end = units_before(me + 1);

  UnitRing<kForm> ring(shared, warp, lane, job.ring);
  Walk<kForm> ahead(job, columns, first_strip, begin, end);
  for (int i = 0; i < job.ring.depth; ++i) {
    const int count = ahead.count(job.ring.chunk);
    ring.start(i, ahead.at, count, lane);
    if (count > 0) ahead.next(job, count);
  }
  wait_for_previous();

  uint8_t* memory = shared + kWarps * ring_bytes(kForm, job.ring);
  Piece<kTiles>* pieces = reinterpret_cast<Piece<kTiles>*>(memory);
  Piece<kTiles>* others = pieces + kWarps;  // of the team's other block; with halved of strips, [block][strip / 2]
  const Rows rows(memory + SharedSizes<kForm, kRows>::pieces(job.team), job, columns, lane);
  __syncthreads();
  if (job.team > 1) barrier.wait();

  const auto finish = [&](int strip, const float(&sums)[kTiles][4], const float(&base)[kTiles][4]) {
    const int s = strip - first_strip;
    if (job.halved) {
      put<kTiles>(*of_block(&others[rank * kMostHalvedStrips / 2 + s / 2], s % 2), sums, lane);
    } else {
      store<kTiles>(job, strip, sums, Rows::kFactor, base, lane);
    }
  };
  // The sums of a strip that an earlier warp began.
  const auto hand_over = [&](int strip, const float(&sums)[kTiles][4]) {
    const bool to_other = rank > 0 && !job.halved && (strip - first_strip) * columns.n < units_before(kWarps);
    put<kTiles>(to_other ? *of_block(&others[warp], 0) : pieces[warp], sums, lane);
  };
  float sums[kTiles][4] = {}, base[kTiles][4];
  Walk<kForm> walk(job, columns, first_strip, begin, end);
  bool whole = walk.unit == 0;  // the warp has the strip's first unit
  while (walk.left > 0) {
    const int count = walk.count(job.ring.chunk);
    const uint32_t from = ring.wait();
#pragma unroll 2
    for (int i = 0; i < count; ++i) rows.multiply(from + i * unit_bytes(kForm), walk.unit + i, sums);
    const int more = ahead.count(job.ring.chunk);
    ring.release(ahead.at, more, lane);
    if (more > 0) ahead.next(job, more);
    const int strip = walk.strip;
    walk.next(job, count);
    if (walk.unit > 0) continue;
    if (whole) {
      load_base<kTiles>(job, strip, base, lane);
      finish(strip, sums, base);
    } else {
      hand_over(strip, sums);
    }
    clear<kTiles>(sums);
    whole = true;
  }
  const bool divided = begin < end && walk.unit > 0;  // the last strip goes on in the next warp
  if (divided && !whole) hand_over(walk.strip, sums);
  if (divided && whole) load_base<kTiles>(job, walk.strip, base, lane);
  if (job.halved) {
    __syncthreads();
  } else {
    barrier.arrive();
    barrier.wait();
  }
  if (divided && whole) {
    const int strip_end = (walk.strip + 1 - first_strip) * columns.n;
    for (int w = me + 1, before = end; w < n_warp && before < strip_end; ++w) {
      const int after = units_before(w + 1);
      if (after > before) add<kTiles>(w / kWarps == me / kWarps ? pieces[w % kWarps] : others[w % kWarps], sums, lane);
      before = after;
    }
    finish(walk.strip, sums, base);
  }
  if (!job.halved) return;
  barrier.arrive();
  barrier.wait();
  for (int s = rank + 2 * warp; s < n_strip; s += 2 * kWarps) {
    load_base<kTiles>(job, first_strip + s, base, lane);
    clear<kTiles>(sums);
    add<kTiles>(others[s / 2], sums, lane);
    add<kTiles>(others[kMostHalvedStrips / 2 + s / 2], sums, lane);
    store<kTiles>(job, first_strip + s, sums, Rows::kFactor, base, lane);
  }
}

/// How the columns are cut into launches of `n_unit` units, and the rings that are left room for.
struct Cut {
  int n_unit, shared_bytes;
  RingShape ring;
};
template <WeightForm kForm, int kRows>
Cut cut_of(const Job& job, const ChipFacts& chip) {
  for (int n_launch = 1;; ++n_launch) {
    const int units = (job.units_of_strip + n_launch - 1) / n_launch;
    const int fixed = SharedSizes<kForm, kRows>::fixed(job.halved ? (units + 1) / 2 : units, job.n_row, job.team);
    const RingShape ring = ring_for(kForm, (chip.shared_bytes - fixed) / kWarps, chip.major >= 9);
    if (ring.depth > 0) return {units, fixed + kWarps * ring_bytes(kForm, ring), ring};
    check(units > 1 ? cudaSuccess : cudaErrorInvalidConfiguration, "cutting a product");
  }
}

template <WeightForm kForm, int kRows>
void launch_few(Job job, const ChipFacts& chip, gpuStream_t stream) {
  job.team = chip.major >= 9 ? 2 : 1;
  const int n_team = chip.n_sm / job.team;
  job.halved = job.team == 2 && job.units_of_strip > kManyUnits && job.n_strip <= n_team * kMostHalvedStrips;
  const Cut cut = cut_of<kForm, kRows>(job, chip);
  job.ring = cut.ring;
  for (; job.first_unit < job.units_of_strip; job.first_unit += job.n_unit) {
    job.n_unit = std::min(cut.n_unit, job.units_of_strip - job.first_unit);
    if (job.n_unit == 1) job.halved = false;
    launch_team(multiply_few<kForm, kRows>, n_team * job.team, kThreads, cut.shared_bytes, job.team, stream, job);
    for (OneProduct& product : job.products) product.add = product.y;  // of the launches before
  }
}

}  // namespace

int count_sms() { return chip_facts().n_sm; }

void matmul_integer(std::span<const Product> products, const DeviceActs& acts, gpuStream_t stream) {
  const ChipFacts chip = chip_facts();
  for (size_t begin = 0; begin < products.size();) {
    // A launch takes products of one form, in the order given.
    const WeightForm form = products[begin].weight->form;
    Job job{};
    size_t end = begin;
    while (end < products.size() && end - begin < kMaxProducts && products[end].weight->form == form) {
      const Product& p = products[end];
      job.products[end++ - begin] = {p.weight->data, p.y, p.add, static_cast<int32_t>(p.weight->n_out), job.n_strip};
      job.n_strip += static_cast<int>(n_strip(p.weight->n_out));
    }
    job.n_product = static_cast<int>(end - begin);
    job.n_row = static_cast<int>(acts.n_row);
    job.units_of_strip = static_cast<int>(n_unit(acts.n_in));
    job.acts = acts_of(acts);
    with_form(form, [&]<WeightForm kForm>() {
      if constexpr (has_plain_rows<kForm>()) {
        if (job.n_row == 1) return launch_few<kForm, 1>(job, chip, stream);
      }
      if (job.n_row <= 8) return launch_few<kForm, 8>(job, chip, stream);
      if (job.n_row <= 16) return launch_few<kForm, 16>(job, chip, stream);
      launch_few<kForm, 32>(job, chip, stream);
    });
    begin = end;
  }
}

}  // namespace onebit::cuda
