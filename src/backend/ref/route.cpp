// Mixture of experts: which experts a row uses with which weights, and the weighted sum of their results.
#include <algorithm>
#include <cmath>

#include "backend/ref/call.h"
#include "backend/ref/select.h"

namespace onebit::ref {
namespace {

/// Softmax (or sigmoid) of all logits x [n].
std::vector<float> probabilities(const float* x, int64_t n, RouterGate gate) {
  std::vector<float> p(static_cast<size_t>(n));
  if (gate == RouterGate::sigmoid) {
    for (int64_t i = 0; i < n; ++i) p[static_cast<size_t>(i)] = sigmoid(x[i]);
    return p;
  }
  const float peak = x[largest(x, n, 1)[0]];
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    p[static_cast<size_t>(i)] = std::exp(x[i] - peak);
    sum += p[static_cast<size_t>(i)];
  }
  for (float& value : p) value /= sum;
  return p;
}

}  // namespace

// The largest are chosen by their logits: both gates are monotone, and equal bits give equal choices.
void route(const OpCall& call) {
  const auto& params = call.params<RouteParams>();
  const Value logits = call.step.in[0];
  const int64_t n_row = call.n_row(logits), n_expert = call.info(logits).width, n_used = params.n_used;
  for (int64_t r = 0; r < n_row; ++r) {
    const float* x = call.in(0) + r * n_expert;
    int32_t* ids = call.data<int32_t>(call.step.out[0]) + r * n_used;
    float* weights = call.out(1) + r * n_used;
    const std::vector<float> p = probabilities(x, n_expert, params.gate);
    const std::vector<int32_t> chosen = largest(x, n_expert, n_used);
    float sum = 0;
    for (int64_t j = 0; j < n_used; ++j) {
      ids[j] = chosen[static_cast<size_t>(j)];
      weights[j] = p[static_cast<size_t>(ids[j])];
      sum += weights[j];
    }
    const float divisor = params.normalise ? std::max(sum, 0x1p-14f) : 1.0f;
    for (int64_t j = 0; j < n_used; ++j) weights[j] = weights[j] / divisor * params.scale;
  }
}

void combine_experts(const OpCall& call) {
  const int64_t n_row = call.n_row(call.step.out[0]), width = call.out_info(0).width, n_used = call.in_info(1).width;
  const float *x = call.in(0), *weights = call.in(1);
  for (int64_t r = 0; r < n_row; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      float sum = 0;
      for (int64_t j = 0; j < n_used; ++j) sum += weights[r * n_used + j] * x[(r * n_used + j) * width + c];
      call.out()[r * width + c] = sum;
    }
  }
}

}  // namespace onebit::ref
