// Quantises activations to the int8 or int4 grid, after an optional 32-point Walsh-Hadamard transform.
#include "backend/ref/act.h"

#include <algorithm>
#include <cmath>

#include "backend/ref/call.h"
#include "gguf/hadamard.h"

namespace onebit::ref {
namespace {

/// Half away from zero, in [low, high]; NaN gives 0.
int to_code(float x, int low, int high) {
  if (std::isnan(x)) return 0;
  return static_cast<int>(std::clamp(std::round(x), static_cast<float>(low), static_cast<float>(high)));
}

/// The whole range is scaled to the code of its largest magnitude, on both sides alike.
ActBlock scale_to(const float* x, float amax, int low, int high) {
  ActBlock block{};
  const float inverse = static_cast<float>(high) / amax;
  block.scale = amax / static_cast<float>(high);
  for (int64_t i = 0; i < kActBlock; ++i) block.codes[i] = static_cast<int8_t>(to_code(x[i] * inverse, low, high));
  return block;
}

/// Half to even, in [-8, 7]; NaN gives 0.
float signed_code(float u) { return std::isnan(u) ? 0 : std::min(7.0f, std::max(-8.0f, std::nearbyint(u))); }

/// The signed extreme takes the longer side of the range; `search` tries several steps.
ActBlock scale_extreme(const float* x, float extreme, bool search) {
  constexpr float kSteps[] = {7, 7.5f, 8, 8.7f};
  ActBlock block{};
  if (std::isinf(extreme)) {
    block.scale = INFINITY;
    return block;
  }
  const float unit = -1 / extreme;
  float best_step = 8, best_scale = extreme / -8, best_gain = -1;
  for (const float step : kSteps) {
    if (!search) break;
    float uq = 0, qq = 0;
    for (int64_t i = 0; i < kActBlock; ++i) {
      const float u = std::isnan(x[i]) ? 0 : x[i] * unit, q = signed_code(u * step);
      uq += u * q;
      qq += q * q;
    }
    const float gain = uq * uq / qq;
    if (!(gain > best_gain)) continue;
    best_gain = gain;
    best_step = step;
    best_scale = -(extreme * (uq / qq));
  }
  block.scale = best_scale;
  for (int64_t i = 0; i < kActBlock; ++i) block.codes[i] = static_cast<int8_t>(signed_code(x[i] * unit * best_step));
  return block;
}

}  // namespace

ActGrid int4_grid(Int4Rule rule) {
  if (rule == Int4Rule::amax) return ActGrid::int4_amax;
  return rule == Int4Rule::extreme ? ActGrid::int4_extreme : ActGrid::int4_search;
}

ActBlock quantize_block(const float* x, ActGrid grid) {
  float amax = 0, extreme = 0;
  for (int64_t i = 0; i < kActBlock; ++i) {
    if (!(std::fabs(x[i]) > amax)) continue;
    amax = std::fabs(x[i]);
    extreme = x[i];
  }
  if (amax < 0x1p-100f) return {};
  ActBlock block = grid == ActGrid::int8        ? scale_to(x, amax, -127, 127)
                   : grid == ActGrid::int4_amax ? scale_to(x, amax, -8, 7)
                                                : scale_extreme(x, extreme, grid == ActGrid::int4_search);
  for (const int8_t code : block.codes) block.sum += code;
  return block;
}

void quantize(const OpCall& call) {
  const auto& params = call.params<QuantizeParams>();
  const Value x = call.step.in[0];
  const int64_t n_row = call.n_row(x), n_block = call.info(x).width / kActBlock;
  ActBlock* y = call.data<ActBlock>(call.step.out[0]);
  for (int64_t r = 0; r < n_row; ++r) {
    const bool prompt = call.sequence(call.token(x, r)).phase == Phase::prompt;
    const ActGrid grid = params.prompt_int4 && prompt ? int4_grid(params.rule) : ActGrid::int8;
    for (int64_t b = 0; b < n_block; ++b) {
      float block[kActBlock];
      std::copy_n(call.in(0) + (r * n_block + b) * kActBlock, kActBlock, block);
      if (params.rotate) hadamard32(block, kActBlock);
      y[r * n_block + b] = quantize_block(block, grid);
    }
  }
}

}  // namespace onebit::ref
