// qwen35, qwen35moe, qwen3next: hybrids of full attention (every 4th block) and gated delta net. Per block, on x [tok,
// n_embd]:
//   a = rms_norm(x, attn_norm)
//   attention: attn_q holds per head d query rows, then d gate rows; q, k are normed per head; the first n_rot columns
//   of
//     each head are rotated (pairs i, i + n_rot/2); the attention's output times sigmoid(gate) goes through attn_output
//   delta net: u = attn_qkv a, z = attn_gate a, beta and alpha; o = delta_net(u, beta, alpha);
//     rms_norm(o) per value head times ssm_norm times silu(z) goes through ssm_out
//   x += that; b = rms_norm(x, post_attention_norm); x += swiglu(b), or experts plus the shared expert behind its gate
// qwen35 files store value heads so that head h uses key head h mod n_k; qwen3next files h / (n_v / n_k), and
// interleave beta and alpha per key head in ssm_ba. Norm weights are final multipliers in all of them. State: keys and
// values of the attention blocks; convolution rows and S of the others.
#include "base/error.h"
#include "gguf/keys.h"
#include "model/blocks.h"
#include "model/trunks.h"

namespace onebit {
namespace {

Value gated_attention(Plan& plan, const Block& block, Value a) {
  const ModelConfig& c = block.config();
  const int64_t d = c.d_head;
  const Value qg = linear(plan, a, block.get(keys::kAttnQ, {c.n_head * 2 * d, c.n_embd}));  // [tok, n_head * (d + d)]
  Value k = linear(plan, a, block.get(keys::kAttnK, {c.n_head_kv * d, c.n_embd}));          // [tok, n_head_kv * d]
  const Value v = linear(plan, a, block.get(keys::kAttnV, {c.n_head_kv * d, c.n_embd}));    // [tok, n_head_kv * d]
  Value q = plan.slice_heads(qg, {.n_group = c.n_head, .stride = 2 * d, .offset = 0, .length = d});
  const Value gate = plan.slice_heads(qg, {.n_group = c.n_head, .stride = 2 * d, .offset = d, .length = d});
  q = plan.rms_norm(q, block.get(keys::kAttnQNorm, {d}), c.eps);
  k = plan.rms_norm(k, block.get(keys::kAttnKNorm, {d}), c.eps);
  return attend(plan, block, q, k, v, &gate, nullptr);
}

/// beta and alpha [tok, n_v_head] of a delta net block.
std::pair<Value, Value> beta_alpha(Plan& plan, const Block& block, Value a) {
  const ModelConfig& c = block.config();
  const DeltaNetParams& net = c.delta_net;
  if (c.architecture != "qwen3next") {
    const Value beta = linear(plan, a, block.get(keys::kSsmBeta, {net.n_v_head, c.n_embd}));
    const Value alpha = linear(plan, a, block.get(keys::kSsmAlpha, {net.n_v_head, c.n_embd}));
    return {beta, alpha};
  }
  const int64_t r = net.n_v_head / net.n_k_head;
  const Value ba =
      linear(plan, a, block.get(keys::kSsmBa, {2 * net.n_v_head, c.n_embd}));  // per key head r beta, r alpha
  const Value beta = plan.slice_heads(ba, {.n_group = net.n_k_head, .stride = 2 * r, .offset = 0, .length = r});
  const Value alpha = plan.slice_heads(ba, {.n_group = net.n_k_head, .stride = 2 * r, .offset = r, .length = r});
  return {beta, alpha};
}

Value gated_delta_net(Plan& plan, const Block& block, Value a) {
  const ModelConfig& c = block.config();
  const DeltaNetParams& net = c.delta_net;
  const int64_t inner = net.n_v_head * net.d_v;
  const int64_t n_channel = 2 * net.n_k_head * net.d_k + inner;
  const auto [beta, alpha] =
      beta_alpha(plan, block, a);  // small: first, so that a device can bring the others meanwhile
  const Value u = linear(plan, a, block.get(keys::kAttnQkv, {n_channel, c.n_embd}));  // [tok, n_channel]
  const Value z = linear(plan, a, block.get(keys::kAttnGate, {inner, c.n_embd}));     // [tok, inner]
  const State& state = block.state(DeltaNetState{n_channel, net.n_tap, net.n_v_head, net.d_k, net.d_v});
  const Value o =
      plan.delta_net(u, beta, alpha, block.get(keys::kSsmConv1d, {n_channel, net.n_tap}),
                     block.get(keys::kSsmA, {net.n_v_head}), block.get(keys::kSsmDtBias, {net.n_v_head}), state,
                     net);                                                             // [tok, inner]
  const Value y = plan.gated_norm(o, block.get(keys::kSsmNorm, {net.d_v}), z, c.eps);  // [tok, inner]
  return linear(plan, y, block.get(keys::kSsmOut, {c.n_embd, inner}));                 // [tok, n_embd]
}

}  // namespace

Value qwen35_trunk(Plan& plan, Model& model, const Taps* taps) {
  const ModelConfig& c = model.config();
  if (model.file().find(keys::block(0, "ssm_in.weight"))) {
    refuse("{}: blk.0.ssm_in.weight belongs to an early layout of qwen3next files; convert the model again",
           model.file().path());
  }
  Value x = plan.embed(model.token_embd());
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const Block block(model, i);
    const Value a = plan.rms_norm(x, block.get(keys::kAttnNorm, {c.n_embd}), c.eps);
    x = plan.add(
        x, c.recurrent[static_cast<size_t>(i)] ? gated_delta_net(plan, block, a) : gated_attention(plan, block, a));
    const Value b = plan.rms_norm(x, block.get(keys::kPostAttentionNorm, {c.n_embd}), c.eps);
    x = plan.add(x, c.moe() ? moe_ffn(plan, block, b) : swiglu_ffn(plan, block, b));
    tap(plan, taps, i + 1, x);
  }
  return x;
}

}  // namespace onebit
