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

}  // namespace

ActBlock quantize_block(const float* x, ActGrid grid) {
  const int low = grid == ActGrid::int8 ? -127 : -8, high = grid == ActGrid::int8 ? 127 : 7;
  float amax = 0;
  for (int64_t i = 0; i < kActBlock; ++i) {
    if (std::fabs(x[i]) > amax) amax = std::fabs(x[i]);
  }
  ActBlock block{};
  if (amax < 0x1p-100f) return block;
  const float inverse = static_cast<float>(high) / amax;
  block.scale = amax / static_cast<float>(high);
  for (int64_t i = 0; i < kActBlock; ++i) {
    const int code = to_code(x[i] * inverse, low, high);
    block.codes[i] = static_cast<int8_t>(code);
    block.sum += code;
  }
  return block;
}

void quantize(const OpCall& call) {
  const auto& params = call.params<QuantizeParams>();
  const Value x = call.step.in[0];
  const int64_t n_row = call.n_row(x), n_block = call.info(x).width / kActBlock;
  ActBlock* y = call.data<ActBlock>(call.step.out[0]);
  for (int64_t r = 0; r < n_row; ++r) {
    const bool prompt = call.sequence(call.token(x, r)).phase == Phase::prompt;
    const ActGrid grid = params.prompt_int4 && prompt ? ActGrid::int4 : ActGrid::int8;
    for (int64_t b = 0; b < n_block; ++b) {
      float block[kActBlock];
      std::copy_n(call.in(0) + (r * n_block + b) * kActBlock, kActBlock, block);
      if (params.rotate) hadamard32(block, kActBlock);
      y[r * n_block + b] = quantize_block(block, grid);
    }
  }
}

}  // namespace onebit::ref
