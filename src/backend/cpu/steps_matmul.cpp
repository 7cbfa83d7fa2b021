// Matrix products with quantised and float weights, and the quantisation of their inputs.
//
// Outputs are cut into strips of 16 rows. Each thread has a contiguous share of them and takes a few at a time, so that
// it streams through memory in order. The 1..16 rows of decode and verify are one pass over the weights; for prompts
// the strips of a claim stay in L2 while one tile of activations after the other passes by, or are unpacked chunk by
// chunk for a group of tiles.
#include <algorithm>
#include <cstring>

#include "backend/cpu/step.h"
#include "backend/cpu/tiles.h"

namespace onebit::cpu {
namespace {

constexpr int64_t kTilesPerPass = 16;       // tiles of activations that meet unpacked strips
constexpr int64_t kBlocksPerChunk = 16;     // blocks that are unpacked at a time: 9 to 12 KB, a part of L1
constexpr int64_t kFloatDepth = 512;        // columns of a 64-row float strip at a time: 128 KB, within L2
constexpr int64_t kClaimBytes = 512 << 10;  // weights that a thread takes at a time for few rows
constexpr int64_t kColumnBlocks = 4;        // unit of columns that are quantised by one thread
constexpr int kTileFloats = kTileTokens * kLanes;

/// Whether the products of strip s go straight to the results: where a whole strip of a plain row fits.
bool goes_straight(const LoadedWeight& weight, int64_t s, const Results& to) {
  return !to.rows && (s + 1) * kLanes <= weight.n_out;
}
/// Copies sums [n_tok, 16] of strip s and a tile to the results.
void hand_out(const LoadedWeight& weight, int64_t s, int64_t tile, int n_tok, const Results& to, const float* sums) {
  const auto bytes = static_cast<size_t>(std::min<int64_t>(kLanes, weight.n_out - s * kLanes)) * 4;
  for (int t = 0; t < n_tok; ++t) std::memcpy(to.row(tile * kTileTokens + t) + s * kLanes, sums + t * kLanes, bytes);
}

/// Strips that the tile kernels read as they are: each tile of activations stays in L1 for all strips.
void multiply_plain(TileFn multiply, const LoadedWeight& weight, const uint8_t* matrix, Range strips, const ActRows& x,
                    const Results& to, float* spare) {
  for (int64_t tile = 0; tile < x.n_tile(); ++tile) {
    const int n_tok = x.tile_tokens(tile);
    for (int64_t s = strips.begin; s < strips.end; ++s) {
      const bool straight = goes_straight(weight, s, to);
      const TileOut out =
          straight ? TileOut{to.row(tile * kTileTokens) + s * kLanes, to.y_row, false} : TileOut{spare, kLanes, false};
      multiply(matrix + s * weight.strip_bytes, x.tile(tile), n_tok, x.n_block, out);
      if (!straight) hand_out(weight, s, tile, n_tok, to, spare);
    }
  }
}

/// Scratch of products by way of wide blocks: sums [strips, tiles, 16, 16], and one strip's blocks of a chunk.
struct Unpacked {
  float* sums;
  uint8_t* wide;

  explicit Unpacked(uint8_t* scratch)
      : sums(reinterpret_cast<float*>(scratch)),
        wide(scratch + kMostStripsPerClaim * kTilesPerPass * kTileFloats * 4) {}
  float* sum(int64_t strip, int64_t tile) const { return sums + (strip * kTilesPerPass + tile) * kTileFloats; }
};

/// What multiply_unpacked works on: at most kMostStripsPerClaim strips and kTilesPerPass tiles.
struct UnpackedJob {
  const Kernels& kernels;
  const LoadedWeight& weight;
  const uint8_t* matrix;
  Range strips, tiles;
  const ActRows& x;
  Unpacked scratch;

  /// Blocks [block, block + n) of strip s: unpacked once, then multiplied with all tiles.
  void multiply_chunk(int64_t s, int64_t block, int64_t n) const {
    const int64_t at = s * weight.strip_bytes + strip_bytes(weight.strip, block * kBlock);
    kernels.unpack[static_cast<int>(weight.strip)](matrix + at, n, scratch.wide);
    const TileFn multiply = kernels.matmul_wide[static_cast<int>(shape_of(weight.strip).wide)];
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const int n_tok = x.tile_tokens(tile);
      multiply(scratch.wide, x.tile(tile) + block * n_tok * kActBlockBytes, n_tok, n,
               {scratch.sum(s - strips.begin, tile - tiles.begin), kLanes, block > 0});
    }
  }
};

/// Chunk by chunk: the activations of a chunk stay in L2 for all strips, and what is unpacked in L1 for all tiles. Sums
/// lie close together until they are whole, for rows of results may be far apart.
void multiply_unpacked(const UnpackedJob& job, const Results& to) {
  for (int64_t block = 0; block < job.x.n_block; block += kBlocksPerChunk) {
    const int64_t n = std::min(kBlocksPerChunk, job.x.n_block - block);
    for (int64_t s = job.strips.begin; s < job.strips.end; ++s) job.multiply_chunk(s, block, n);
  }
  for (int64_t s = job.strips.begin; s < job.strips.end; ++s) {
    for (int64_t tile = job.tiles.begin; tile < job.tiles.end; ++tile) {
      hand_out(job.weight, s, tile, job.x.tile_tokens(tile), to,
               job.scratch.sum(s - job.strips.begin, tile - job.tiles.begin));
    }
  }
}

GemmFn gemm_for(const Kernels& kernels, BlockType type) {
  if (type == BlockType::f16) return kernels.gemm_f16;
  return type == BlockType::bf16 ? kernels.gemm_bf16 : kernels.gemm_f32;
}

}  // namespace

int64_t strip_scratch_bytes() {
  return kMostStripsPerClaim * kTilesPerPass * kTileFloats * 4 + kBlocksPerChunk * kWideBytesMax;
}

int64_t strips_per_claim(const LoadedWeight& weight, int64_t n_tok, int n_thread) {
  const int64_t fitting = n_tok > kTileTokens
                              ? kMostStripsPerClaim
                              : std::clamp<int64_t>(kClaimBytes / weight.strip_bytes, 1, kMostStripsPerClaim);
  const int64_t n = std::clamp<int64_t>(weight.n_strip() / ((n_tok > kTileTokens ? 8 : 16) * n_thread), 1, fitting);
  if (weight.form == LoadedWeight::Form::strips) return n;
  constexpr int64_t kWhole = kFloatStrip / kLanes;  // narrower parts of a float strip take as long
  return weight.n_strip() >= kWhole * n_thread ? (n + kWhole - 1) / kWhole * kWhole : n;
}

Entered::Entered(const Kernels& kernels, const LoadedWeight& weight, int64_t n_tok) {
  const bool direct = n_tok <= kernels.most_direct[static_cast<int>(weight.strip)] && n_tok < kernels.enter_from;
  if (weight.form != LoadedWeight::Form::strips || !kernels.enter || direct) return;
  kernels.enter();
  leave_ = kernels.leave;
}

void multiply_strips(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, Range strips,
                     const ActRows& x, const Results& to, uint8_t* scratch) {
  const auto form = static_cast<int>(weight.strip);
  if (x.n_tok <= kernels.most_direct[form]) {
    multiply_plain(kernels.matmul[form], weight, matrix, strips, x, to, reinterpret_cast<float*>(scratch));
  } else {
    for (int64_t s = strips.begin; s < strips.end; s += kMostStripsPerClaim) {
      const Range some{s, std::min(s + kMostStripsPerClaim, strips.end)};
      for (int64_t tile = 0; tile < x.n_tile(); tile += kTilesPerPass) {
        const Range tiles{tile, std::min(tile + kTilesPerPass, x.n_tile())};
        multiply_unpacked({kernels, weight, matrix, some, tiles, x, Unpacked(scratch)}, to);
      }
    }
  }
}

void multiply_floats(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, Range strips,
                     const float* x, int64_t n_tok, const Results& to, float* scratch) {
  const GemmFn gemm = gemm_for(kernels, weight.type);
  const int64_t n_in = weight.n_in, bytes = type_info(weight.type).block_bytes;
  const int64_t end = std::min(strips.end * kLanes, weight.n_out);
  for (int64_t row = strips.begin * kLanes; row < end;) {
    const int64_t first = row / kFloatStrip * kFloatStrip;  // of the wide strip
    const int64_t width = std::min<int64_t>(kFloatStrip, weight.n_strip() * kLanes - first);
    const int64_t n = std::min(first + kFloatStrip, end) - row;
    const uint8_t* b = matrix + (first * n_in + row - first) * bytes;
    float* c = to.rows ? scratch : to.y + row;
    const int64_t c_row = to.rows ? kFloatStrip : to.y_row;
    for (int64_t k = 0; k < n_in; k += kFloatDepth) {
      gemm(x + k, n_in, 1, b + k * width * bytes, width, c, c_row, n_tok, n, std::min(kFloatDepth, n_in - k), k > 0);
    }
    for (int64_t t = 0; to.rows && t < n_tok; ++t) {
      std::memcpy(to.row(t) + row, c + t * c_row, static_cast<size_t>(n) * 4);
    }
    row += n;
  }
}

namespace {

ActGrid int4_grid(Int4Rule rule) {
  if (rule == Int4Rule::amax) return ActGrid::int4_amax;
  return rule == Int4Rule::extreme ? ActGrid::int4_extreme : ActGrid::int4_search;
}

}  // namespace

void run_quantize(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<QuantizeParams>();
  const Operand& x = step.in[0];
  const ActRows act{step.out[0].data, worker.n_row(x), x.width() / kBlock};
  // Few rows share the cache lines of one tile, so they are divided by columns (and quantize is no row-local step
  // then).
  const bool by_columns = is_one_tile(worker.n_tok()) && act.n_tok <= kTileTokens;
  const Range rows = by_columns ? Range{0, act.n_tok} : worker.rows(x);
  const Range blocks =
      by_columns ? share(act.n_block, kColumnBlocks, worker.thread(), worker.n_thread()) : Range{0, act.n_block};
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const bool prompt = worker.sequence(worker.token(x, r)).phase == Phase::prompt;
    const int64_t tile = r / kTileTokens;
    const ActGrid grid = params.prompt_int4 && prompt ? int4_grid(params.rule) : ActGrid::int8;
    const int n_tok = act.tile_tokens(tile);
    worker.kernels().quantize(x.f32(r) + blocks.begin * kBlock, blocks.size(), params.rotate, grid,
                              act.tile(tile) + blocks.begin * n_tok * kActBlockBytes, n_tok,
                              static_cast<int>(r % kTileTokens));
  }
}

Needs needs_matmul(const CpuStep& step, const PlanLimits& limits, int) {
  return {.thread = strip_scratch_bytes() + (step.shortlists ? shortlist_scratch_bytes(step, limits) : 0)};
}

void multiply_claim(const CpuStep& step, Worker& worker, Range strips, const Results& to, uint8_t* scratch) {
  const LoadedWeight& weight = *step.matrices[0];
  const Operand& x = step.in[0];
  const int64_t n_row = worker.n_row(x);
  if (weight.form == LoadedWeight::Form::strips) {
    const ActRows act{x.data, n_row, weight.n_in / kBlock};
    return multiply_strips(worker.kernels(), weight, weight.data, strips, act, to, scratch);
  }
  multiply_floats(worker.kernels(), weight, weight.data, strips, x.f32(), n_row, to, nullptr);
}

void run_matmul(const CpuStep& step, Worker& worker) {
  const LoadedWeight& weight = *step.matrices[0];
  const Operand& y = step.out[0];
  const int64_t n_row = worker.n_row(step.in[0]);
  if (n_row == 0) return;
  const Entered entered(worker.kernels(), weight, n_row);
  worker.deal(step, weight.n_strip(), strips_per_claim(weight, n_row, worker.n_thread()), [&](Range strips) {
    multiply_claim(step, worker, strips, {y.f32(), y.width(), nullptr}, worker.scratch<uint8_t>());
  });
}

}  // namespace onebit::cpu
