// The gated delta net: short causal convolution, SiLU, L2 norm, gates and the delta rule, one row after another.
#include <algorithm>
#include <cmath>

#include "backend/ref/call.h"

namespace onebit::ref {
namespace {

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

struct Weights {
  const float* conv;  // [n_channel, n_tap]
  const float* a;     // [n_v_head]
  const float* dt;    // [n_v_head]
};

/// silu of the convolution of u and the rows before it; then u moves into the window.
std::vector<float> convolve(DeltaSlot& slot, const float* conv, int64_t n_tap, const std::vector<float>& u) {
  const auto n_channel = static_cast<int64_t>(u.size());
  std::vector<float> c(u.size());
  for (int64_t i = 0; i < n_channel; ++i) {
    float sum = 0;
    for (int64_t m = 0; m < n_tap - 1; ++m)
      sum += conv[i * n_tap + m] * slot.window[static_cast<size_t>(m * n_channel + i)];
    sum += conv[i * n_tap + n_tap - 1] * u[static_cast<size_t>(i)];
    c[static_cast<size_t>(i)] = silu(sum);
  }
  if (n_tap > 1) {
    std::copy(slot.window.begin() + n_channel, slot.window.end(), slot.window.begin());
    std::copy(u.begin(), u.end(), slot.window.end() - n_channel);
  }
  return c;
}

/// x / sqrt(sum x^2 + eps) * scale, in place.
void l2_normalise(float* x, int64_t n, float eps, float scale) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const float norm = std::sqrt(sum + eps);
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] / norm * scale;
}

/// The delta rule of one value head; matrix [d_v, d_k], o [d_v].
void update_head(const DeltaNetParams& params, float* matrix, const float* q, const float* k, const float* v,
                 float decay, float b, float* o) {
  for (int64_t j = 0; j < params.d_v; ++j) {
    float* s = matrix + j * params.d_k;
    float seen = 0;
    for (int64_t i = 0; i < params.d_k; ++i) {
      s[i] *= decay;
      seen += s[i] * k[i];
    }
    const float delta = b * (v[j] - seen);
    float out = 0;
    for (int64_t i = 0; i < params.d_k; ++i) {
      s[i] += k[i] * delta;
      out += s[i] * q[i];
    }
    o[j] = out;
  }
}

/// Moves `slot` on by one row; o: [n_v_head, d_v].
void advance(const DeltaNetParams& params, const Weights& weights, DeltaSlot& slot, const TapeRow& row, float* o) {
  std::vector<float> c = convolve(slot, weights.conv, params.n_tap, row.u);
  float* q = c.data();
  float* k = q + params.n_k_head * params.d_k;
  const float* v = k + params.n_k_head * params.d_k;
  const float q_scale = 1 / std::sqrt(static_cast<float>(params.d_k));
  for (int64_t h = 0; h < params.n_k_head; ++h) {
    l2_normalise(q + h * params.d_k, params.d_k, params.eps, q_scale);
    l2_normalise(k + h * params.d_k, params.d_k, params.eps, 1);
  }
  for (int64_t h = 0; h < params.n_v_head; ++h) {
    const int64_t key_head =
        params.map == HeadMap::tiled ? h % params.n_k_head : h / (params.n_v_head / params.n_k_head);
    const auto at = static_cast<size_t>(h);
    const float decay = std::exp(weights.a[h] * softplus(row.alpha[at] + weights.dt[h]));
    update_head(params, slot.matrix.data() + h * params.d_v * params.d_k, q + key_head * params.d_k,
                k + key_head * params.d_k, v + h * params.d_v, decay, sigmoid(row.beta[at]), o + h * params.d_v);
  }
}

TapeRow inputs(const OpCall& call, int64_t r) {
  TapeRow row;
  for (size_t i = 0; i < 3; ++i) {
    const float* x = call.in(i) + r * call.in_info(i).width;
    (i == 0 ? row.u : i == 1 ? row.beta : row.alpha).assign(x, x + call.in_info(i).width);
  }
  return row;
}

}  // namespace

void delta_net(const OpCall& call) {
  const auto& params = call.params<DeltaNetParams>();
  auto& memory = call.memory_of<DeltaMemory>();
  const Weights weights{call.operand(0), call.operand(1), call.operand(2)};
  const int64_t width = call.out_info(0).width;
  for (const Sequence& sequence : call.batch.sequences) {
    DeltaSlot& committed = memory.slots[static_cast<size_t>(sequence.slot)];
    std::vector<TapeRow>& tape = memory.tapes[static_cast<size_t>(sequence.slot)];
    CHECK(sequence.n_commit >= 0 && sequence.n_commit <= static_cast<int64_t>(tape.size()));
    std::vector<float> unused(static_cast<size_t>(width));
    for (int32_t i = 0; i < sequence.n_commit; ++i) {
      advance(params, weights, committed, tape[static_cast<size_t>(i)], unused.data());
    }
    tape.clear();
    const bool verify = sequence.phase == Phase::verify;
    CHECK(!verify || sequence.n_tok <= memory.n_tape);
    DeltaSlot trial = verify ? committed : DeltaSlot{};  // a copy that the rows under test may change
    for (int64_t i = 0; i < sequence.n_tok; ++i) {
      const int64_t r = sequence.row + i;
      const TapeRow row = inputs(call, r);
      advance(params, weights, verify ? trial : committed, row, call.out() + r * width);
      if (verify) tape.push_back(row);
    }
  }
}

}  // namespace onebit::ref
