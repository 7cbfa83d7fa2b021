// Root-mean-square norms over groups of columns.
#include <cmath>

#include "backend/ref/call.h"

namespace onebit::ref {
namespace {

/// sqrt(mean(x^2) + eps) over n values, summed in ascending order.
float root_mean_square(const float* x, int64_t n, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum / static_cast<float>(n) + eps);
}

}  // namespace

void rms_norm(const OpCall& call) {
  const auto& params = call.params<NormParams>();
  const int64_t n_group = call.n_row(call.step.out[0]) * call.out_info(0).width / params.group;
  for (int64_t g = 0; g < n_group; ++g) {
    const float* x = call.in(0) + g * params.group;
    float* y = call.out() + g * params.group;
    const float rms = root_mean_square(x, params.group, params.eps);
    for (int64_t c = 0; c < params.group; ++c) y[c] = x[c] / rms * call.operand(0)[c];
  }
}

void gated_norm(const OpCall& call) {
  const auto& params = call.params<NormParams>();
  const int64_t n_group = call.n_row(call.step.out[0]) * call.out_info(0).width / params.group;
  for (int64_t g = 0; g < n_group; ++g) {
    const float *x = call.in(0) + g * params.group, *z = call.in(1) + g * params.group;
    float* y = call.out() + g * params.group;
    const float rms = root_mean_square(x, params.group, params.eps);
    for (int64_t c = 0; c < params.group; ++c) y[c] = x[c] / rms * call.operand(0)[c] * silu(z[c]);
  }
}

}  // namespace onebit::ref
