// Matrix products with quantised and float weights, and the quantisation of their inputs.
//
// Outputs are cut into strips of 16 rows. Each thread has a contiguous share of them and takes a few at a time, so that
// it streams through memory in order. The 1..16 rows of decode and verify are one pass over the weights; for prompts
// the strips of a claim stay in L2 while one tile of activations after the other passes by.
#include <algorithm>
#include <cstring>

#include "backend/cpu/step.h"
#include "backend/cpu/tiles.h"

namespace onebit::cpu {
namespace {

constexpr int64_t kTilesPerPass = 16;       // tiles of activations that meet an unpacked strip at a time
constexpr int64_t kBlocksPerChunk = 32;     // blocks that are unpacked at a time: 22 KB, within L1
constexpr int64_t kFloatDepth = 512;        // columns of a 64-row float strip at a time: 128 KB, within L2
constexpr int64_t kClaimBytes = 512 << 10;  // weights that a thread takes at a time, within L2
constexpr int64_t kColumnBlocks = 4;        // unit of columns that are quantised by one thread
constexpr int kTileFloats = kTileTokens * kLanes;

/// Where the products of strip s and a tile go: straight to the results where a whole strip of a plain row fits, else
/// to `spare` [16, 16].
bool goes_straight(const LoadedWeight& weight, int64_t s, const Results& to) {
  return !to.rows && (s + 1) * kLanes <= weight.n_out;
}
TileOut out_for(const LoadedWeight& weight, int64_t s, int64_t tile, const Results& to, float* spare, bool add) {
  if (goes_straight(weight, s, to)) return {to.row(tile * kTileTokens) + s * kLanes, to.y_row, add};
  return {spare, kLanes, add};
}
void hand_out(const LoadedWeight& weight, int64_t s, int64_t tile, int n_tok, const Results& to, const float* spare) {
  if (goes_straight(weight, s, to)) return;
  const auto bytes = static_cast<size_t>(std::min<int64_t>(kLanes, weight.n_out - s * kLanes)) * 4;
  for (int t = 0; t < n_tok; ++t) std::memcpy(to.row(tile * kTileTokens + t) + s * kLanes, spare + t * kLanes, bytes);
}

/// Strips that the tile kernels read as they are: each tile of activations stays in L1 for all strips.
void multiply_plain(TileFn multiply, const LoadedWeight& weight, const uint8_t* matrix, Range strips, const ActRows& x,
                    const Results& to, float* spare) {
  for (int64_t tile = 0; tile < x.n_tile(); ++tile) {
    const int n_tok = x.tile_tokens(tile);
    for (int64_t s = strips.begin; s < strips.end; ++s) {
      multiply(matrix + s * weight.strip_bytes, x.tile(tile), n_tok, x.n_block,
               out_for(weight, s, tile, to, spare, false));
      hand_out(weight, s, tile, n_tok, to, spare);
    }
  }
}

/// Strips that are unpacked first, a chunk at a time for all tiles from `first` to `last`. spare: [tiles, 16, 16].
void multiply_unpacked(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, int64_t s,
                       const ActRows& x, int64_t first, int64_t last, const Results& to, float* spare, uint8_t* wide) {
  const uint8_t* strip = matrix + s * weight.strip_bytes;
  const TileFn multiply = kernels.matmul_wide[static_cast<int>(shape_of(weight.strip).wide)];
  for (int64_t block = 0; block < x.n_block; block += kBlocksPerChunk) {
    const int64_t n = std::min(kBlocksPerChunk, x.n_block - block);
    kernels.unpack[static_cast<int>(weight.strip)](strip + strip_bytes(weight.strip, block * kBlock), n, wide);
    for (int64_t tile = first; tile < last; ++tile) {
      const int n_tok = x.tile_tokens(tile);
      multiply(wide, x.tile(tile) + block * n_tok * kActBlockBytes, n_tok, n,
               out_for(weight, s, tile, to, spare + (tile - first) * kTileFloats, block > 0));
    }
  }
  for (int64_t tile = first; tile < last; ++tile) {
    hand_out(weight, s, tile, x.tile_tokens(tile), to, spare + (tile - first) * kTileFloats);
  }
}

GemmFn gemm_for(const Kernels& kernels, BlockType type) {
  if (type == BlockType::f16) return kernels.gemm_f16;
  return type == BlockType::bf16 ? kernels.gemm_bf16 : kernels.gemm_f32;
}

}  // namespace

int64_t strip_scratch_bytes() { return kTilesPerPass * kTileFloats * 4 + kBlocksPerChunk * kWideBytesMax; }

int64_t strips_per_claim(const LoadedWeight& weight, int64_t n_tok, int n_thread) {
  const int64_t fitting = std::clamp<int64_t>(kClaimBytes / weight.strip_bytes, 1, 16);
  const int64_t n = std::clamp<int64_t>(weight.n_strip() / ((n_tok > kTileTokens ? 8 : 16) * n_thread), 1, fitting);
  if (weight.form == LoadedWeight::Form::strips) return n;
  constexpr int64_t kWhole = kFloatStrip / kLanes;  // narrower parts of a float strip take as long
  return weight.n_strip() >= kWhole * n_thread ? (n + kWhole - 1) / kWhole * kWhole : n;
}

void multiply_strips(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, Range strips,
                     const ActRows& x, const Results& to, uint8_t* scratch) {
  auto* spare = reinterpret_cast<float*>(scratch);
  const TileFn multiply = kernels.matmul[static_cast<int>(weight.strip)];
  const bool plain = weight.strip == Strip::q4_0 || weight.strip == Strip::q8_0;
  if (plain || (multiply && x.n_tile() == 1)) return multiply_plain(multiply, weight, matrix, strips, x, to, spare);
  uint8_t* wide = scratch + kTilesPerPass * kTileFloats * 4;
  for (int64_t first = 0; first < x.n_tile(); first += kTilesPerPass) {
    const int64_t last = std::min(first + kTilesPerPass, x.n_tile());
    for (int64_t s = strips.begin; s < strips.end; ++s) {
      multiply_unpacked(kernels, weight, matrix, s, x, first, last, to, spare, wide);
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

Needs needs_matmul(const CpuStep&, const PlanLimits&, int) { return {.thread = strip_scratch_bytes()}; }

void run_matmul(const CpuStep& step, Worker& worker) {
  const LoadedWeight& weight = *step.matrices[0];
  const Operand &x = step.in[0], &y = step.out[0];
  const int64_t n_row = worker.n_row(x);
  const Results to{y.f32(), y.width(), nullptr};
  if (n_row == 0) return;
  worker.deal(step, weight.n_strip(), strips_per_claim(weight, n_row, worker.n_thread()), [&](Range strips) {
    if (weight.form == LoadedWeight::Form::strips) {
      const ActRows act{x.data, n_row, weight.n_in / kBlock};
      multiply_strips(worker.kernels(), weight, weight.data, strips, act, to, worker.scratch<uint8_t>());
    } else {
      multiply_floats(worker.kernels(), weight, weight.data, strips, x.f32(), n_row, to, nullptr);
    }
  });
}

}  // namespace onebit::cpu
