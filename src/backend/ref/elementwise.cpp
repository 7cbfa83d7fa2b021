// Ops on one element at a time, and the column selection of slice_heads. Outputs may lie on their first input.
#include <algorithm>
#include <cmath>

#include "backend/ref/call.h"

namespace onebit::ref {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float silu(float x) { return x * sigmoid(x); }

void add(const OpCall& call) {
  const float *a = call.in(0), *b = call.in(1);
  float* y = call.out();
  const int64_t n = call.n_row(call.step.out[0]) * call.out_info(0).width;
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void sum_devices(const OpCall& call) {
  const float* x = call.in(0);
  const int64_t n = call.n_row(call.step.out[0]) * call.out_info(0).width;
  if (x != call.out()) std::copy(x, x + n, call.out());
  call.membership.sum(call.out(), n, nullptr);
}

void sigmoid_mul(const OpCall& call) {
  const float *x = call.in(0), *gate = call.in(1);
  float* y = call.out();
  const int64_t n_row = call.n_row(call.step.out[0]), width = call.out_info(0).width,
                gate_width = call.in_info(1).width;
  for (int64_t r = 0; r < n_row; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      y[r * width + c] = x[r * width + c] * sigmoid(gate[gate_width == 1 ? r : r * width + c]);
    }
  }
}

void swiglu(const OpCall& call) {
  const float *gate = call.in(0), *up = call.in(1);
  float* y = call.out();
  const int64_t n = call.n_row(call.step.out[0]) * call.out_info(0).width;
  for (int64_t i = 0; i < n; ++i) y[i] = silu(gate[i]) * up[i];
}

void softcap(const OpCall& call) {
  const auto& params = call.params<SoftcapParams>();
  const float* x = call.in(0);
  float* y = call.out();
  const int64_t n = call.n_row(call.step.out[0]) * call.out_info(0).width;
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * params.scale;
    y[i] = params.cap > 0 ? params.cap * std::tanh(scaled / params.cap) : scaled;
  }
}

void slice_heads(const OpCall& call) {
  const auto& params = call.params<SliceParams>();
  const int64_t n_row = call.n_row(call.step.out[0]), width = call.in_info(0).width;
  const float* x = call.in(0);
  float* y = call.out();
  for (int64_t r = 0; r < n_row; ++r) {
    for (int64_t g = 0; g < params.n_group; ++g) {
      for (int64_t c = 0; c < params.length; ++c) *y++ = x[r * width + g * params.stride + params.offset + c];
    }
  }
}

}  // namespace onebit::ref
