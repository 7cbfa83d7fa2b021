// Matrix products with quantised and float weights, and the quantisation of their inputs.
//
// Outputs are cut into strips of 16 rows and threads claim a few strips at a time. A claim walks its strips with all
// tokens: for the 1..16 rows of decode and verify that is one pass over the weights at memory speed; for prompts a
// strip (46 KB at K = 5120) stays in L2 while the 16 tiles of a block of 256 tokens pass by, and their codes come from
// L3.
#include <algorithm>
#include <cstring>

#include "backend/cpu/step.h"
#include "backend/cpu/tiles.h"

namespace onebit::cpu {
namespace {

constexpr int64_t kTilesPerPass = 16;    // tiles of activations that meet a strip before the next strip
constexpr int64_t kBlocksPerChunk = 16;  // blocks that are unpacked at a time: 12 KB, with a tile's codes within L1
constexpr int64_t kFloatDepth = 512;     // columns of a 64-row float strip at a time: 128 KB, within L2
constexpr int kAccFloats = kTileTokens * kLanes;

/// Hands the sums of one tile and strip out to the result rows.
void put_sums(const float* sums, int n_tok, int64_t first_tok, int64_t first_row, int64_t n_row, const Results& to) {
  for (int t = 0; t < n_tok; ++t, sums += kLanes) {
    float* y = to.row(first_tok + t) + first_row;
    if (n_row == kLanes) {
      std::memcpy(y, sums, kLanes * 4);  // of constant size, so that no call is made
    } else {
      std::memcpy(y, sums, static_cast<size_t>(n_row) * 4);
    }
  }
}

/// acc [tiles, 16, 16] = one strip times tiles [first, last).
void multiply_strip(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* strip, const ActRows& x,
                    int64_t first, int64_t last, float* acc, uint8_t* wide) {
  std::memset(acc, 0, static_cast<size_t>((last - first) * kAccFloats) * 4);
  if (weight.strip == Strip::q4_0 || weight.strip == Strip::q8_0) {
    const TileFn multiply = weight.strip == Strip::q4_0 ? kernels.matmul_q4_0 : kernels.matmul_q8_0;
    for (int64_t tile = first; tile < last; ++tile, acc += kAccFloats) {
      multiply(strip, x.tile(tile), x.tile_tokens(tile), x.n_block, acc);
    }
    return;
  }
  const StripShape& shape = shape_of(weight.strip);
  const TileFn multiply = kernels.matmul_wide[static_cast<int>(shape.wide)];
  for (int64_t block = 0; block < x.n_block; block += kBlocksPerChunk) {
    const int64_t n = std::min(kBlocksPerChunk, x.n_block - block);
    kernels.unpack[static_cast<int>(weight.strip)](strip + strip_bytes(weight.strip, block * kBlock), n, wide);
    for (int64_t tile = first; tile < last; ++tile) {
      const int n_tok = x.tile_tokens(tile);
      multiply(wide, x.tile(tile) + block * n_tok * kActBlockBytes, n_tok, n, acc + (tile - first) * kAccFloats);
    }
  }
}

GemmFn gemm_for(const Kernels& kernels, BlockType type) {
  if (type == BlockType::f16) return kernels.gemm_f16;
  return type == BlockType::bf16 ? kernels.gemm_bf16 : kernels.gemm_f32;
}

}  // namespace

int64_t strip_scratch_bytes() { return kTilesPerPass * kAccFloats * 4 + kBlocksPerChunk * kWideBytesMax; }

int64_t strips_per_claim(int64_t n_strip, int n_thread) {
  return n_thread == 1 ? n_strip : std::clamp<int64_t>(n_strip / (16 * n_thread), 1, 16);
}

void multiply_strips(const Kernels& kernels, const LoadedWeight& weight, const uint8_t* matrix, Range strips,
                     const ActRows& x, const Results& to, uint8_t* scratch) {
  auto* acc = reinterpret_cast<float*>(scratch);
  uint8_t* wide = scratch + kTilesPerPass * kAccFloats * 4;
  for (int64_t first = 0; first < x.n_tile(); first += kTilesPerPass) {
    const int64_t last = std::min(first + kTilesPerPass, x.n_tile());
    for (int64_t s = strips.begin; s < strips.end; ++s) {
      multiply_strip(kernels, weight, matrix + s * weight.strip_bytes, x, first, last, acc, wide);
      const int64_t n_row = std::min<int64_t>(kLanes, weight.n_out - s * kLanes);
      for (int64_t tile = first; tile < last; ++tile) {
        put_sums(acc + (tile - first) * kAccFloats, x.tile_tokens(tile), tile * kTileTokens, s * kLanes, n_row, to);
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
  const Range rows = worker.rows(x);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const bool prompt = worker.sequence(worker.token(x, r)).phase == Phase::prompt;
    const int64_t tile = r / kTileTokens;
    const ActGrid grid = params.prompt_int4 && prompt ? int4_grid(params.rule) : ActGrid::int8;
    worker.kernels().quantize(x.f32(r), act.n_block, params.rotate, grid, act.tile(tile), act.tile_tokens(tile),
                              static_cast<int>(r % kTileTokens));
  }
}

Needs needs_matmul(const CpuStep&, const PlanLimits&, int) { return {.thread = strip_scratch_bytes()}; }

void run_matmul(const CpuStep& step, Worker& worker) {
  const LoadedWeight& weight = *step.matrices[0];
  const Operand &x = step.in[0], &y = step.out[0];
  const int64_t n_row = worker.n_row(x), n_strip = weight.n_strip();
  const int64_t per_claim = strips_per_claim(n_strip, worker.n_thread());
  const Results to{y.f32(), y.width(), nullptr};
  if (n_row == 0) return;
  for (int64_t s = step.claims->fetch_add(per_claim); s < n_strip; s = step.claims->fetch_add(per_claim)) {
    const Range strips{s, std::min(s + per_claim, n_strip)};
    if (weight.form == LoadedWeight::Form::strips) {
      const ActRows act{x.data, n_row, weight.n_in / kBlock};
      multiply_strips(worker.kernels(), weight, weight.data, strips, act, to, worker.scratch<uint8_t>());
    } else {
      multiply_floats(worker.kernels(), weight, weight.data, strips, x.f32(), n_row, to, nullptr);
    }
  }
}

}  // namespace onebit::cpu
