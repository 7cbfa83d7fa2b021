// Rotary position embedding. Angles are computed in f64 and rounded once, as cosine and sine.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/ref/call.h"

namespace onebit::ref {
namespace {

/// YaRN: the pair index at which a dimension turns `n_turns` times over the original context.
double yarn_dimension(const RopeParams& params, double n_turns) {
  return static_cast<double>(params.n_rot) *
         std::log(static_cast<double>(params.n_ctx_orig) / (n_turns * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(params.theta)));
}

/// YaRN: 1 keeps the angle of pair i, 0 divides it by the factor.
double yarn_ramp(const RopeParams& params, int64_t i) {
  const double low = std::max(0.0, std::floor(yarn_dimension(params, params.yarn_beta_fast)));
  const double high =
      std::min(static_cast<double>(params.n_rot - 1), std::ceil(yarn_dimension(params, params.yarn_beta_slow)));
  return 1 - std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
}

double angle(const RopeParams& params, const float* factors, int32_t pos, int64_t i) {
  const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(params.n_rot);
  double value =
      pos / static_cast<double>(params.linear_factor) * std::pow(static_cast<double>(params.theta), exponent);
  if (factors) value /= factors[i];
  if (params.yarn_factor <= 1) return value;
  const double ramp = yarn_ramp(params, i);
  return value / params.yarn_factor * (1 - ramp) + value * ramp;
}

}  // namespace

void rope(const OpCall& call) {
  const auto& params = call.params<RopeParams>();
  const float* factors = call.step.weights.empty() ? nullptr : call.operand(0);
  const int64_t n_row = call.n_row(call.step.in[0]), width = params.n_head * params.d_head, n_pair = params.n_rot / 2;
  const double magnitude = params.yarn_factor > 1 ? params.yarn_attn_factor : 1;
  for (int64_t r = 0; r < n_row; ++r) {
    const int32_t pos = call.position(call.token(call.step.in[0], r));
    if (call.out() != call.in(0)) std::copy_n(call.in(0) + r * width, width, call.out() + r * width);
    for (int64_t i = 0; i < n_pair; ++i) {
      const double turn = angle(params, factors, pos, i);
      const auto cosine = static_cast<float>(std::cos(turn) * magnitude),
                 sine = static_cast<float>(std::sin(turn) * magnitude);
      const int64_t first = params.style == RopeStyle::neox ? i : 2 * i;
      const int64_t second = params.style == RopeStyle::neox ? i + n_pair : 2 * i + 1;
      for (int64_t h = 0; h < params.n_head; ++h) {
        float* y = call.out() + r * width + h * params.d_head;
        const float a = y[first], b = y[second];
        y[first] = a * cosine - b * sine;
        y[second] = a * sine + b * cosine;
      }
    }
  }
}

}  // namespace onebit::ref
