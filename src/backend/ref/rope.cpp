// Rotary position embedding. Angles are computed in f64 and rounded once, as cosine and sine.
#include <algorithm>
#include <cmath>

#include "backend/ref/call.h"
#include "plan/rope.h"

namespace onebit::ref {

void rope(const OpCall& call) {
  const auto& params = call.params<RopeParams>();
  const float* factors = call.step.weights.empty() ? nullptr : call.operand(0);
  const int64_t n_row = call.n_row(call.step.in[0]), width = params.n_head * params.d_head, n_pair = params.n_rot / 2;
  const std::vector<double> frequencies = rope_frequencies(params, factors);
  const double magnitude = rope_magnitude(params);
  for (int64_t r = 0; r < n_row; ++r) {
    const int32_t pos = call.position(call.token(call.step.in[0], r));
    if (call.out() != call.in(0)) std::copy_n(call.in(0) + r * width, width, call.out() + r * width);
    for (int64_t i = 0; i < n_pair; ++i) {
      const double turn = pos * frequencies[static_cast<size_t>(i)];
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
