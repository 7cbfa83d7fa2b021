#include "plan/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace onebit {
namespace {

/// YaRN: the pair index at which a dimension turns `n_turns` times over the original context.
double yarn_dimension(const RopeParams& params, double n_turns) {
  return static_cast<double>(params.n_rot) *
         std::log(static_cast<double>(params.n_ctx_orig) / (n_turns * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(params.theta)));
}

/// YaRN: 1 keeps the frequency of pair i, 0 divides it by the factor.
double yarn_ramp(const RopeParams& params, double i) {
  const double low = std::max(0.0, std::floor(yarn_dimension(params, params.yarn_beta_fast)));
  const double high =
      std::min(static_cast<double>(params.n_rot - 1), std::ceil(yarn_dimension(params, params.yarn_beta_slow)));
  return 1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
}

}  // namespace

std::vector<double> rope_frequencies(const RopeParams& params, const float* factors) {
  std::vector<double> frequencies(static_cast<size_t>(params.n_rot / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const auto pair = static_cast<double>(i);
    double frequency = std::pow(static_cast<double>(params.theta), -2 * pair / static_cast<double>(params.n_rot)) /
                       static_cast<double>(params.linear_factor);
    if (factors) frequency /= factors[i];
    if (params.yarn_factor > 1) {
      const double ramp = yarn_ramp(params, pair);
      frequency = frequency / params.yarn_factor * (1 - ramp) + frequency * ramp;
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

bool same_angles(const RopeParams& a, const RopeParams& b) {
  return a.n_rot == b.n_rot && a.theta == b.theta && a.linear_factor == b.linear_factor &&
         a.yarn_factor == b.yarn_factor && a.yarn_attn_factor == b.yarn_attn_factor &&
         a.yarn_beta_fast == b.yarn_beta_fast && a.yarn_beta_slow == b.yarn_beta_slow && a.n_ctx_orig == b.n_ctx_orig;
}

double rope_magnitude(const RopeParams& params) {
  return params.yarn_factor > 1 ? static_cast<double>(params.yarn_attn_factor) : 1;
}

}  // namespace onebit
