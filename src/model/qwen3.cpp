// qwen3, qwen3moe: pre-norm transformer. Per block, on the residual stream x [tok, n_embd]:
//   a = rms_norm(x, attn_norm); q, k, v = projections of a, no biases
//   q, k: rms_norm over each head, then rotary embedding of all columns (pairs i, i + d/2)
//   x += attn_output(softmax(q k^T / sqrt(d)) v), each key head shared by n_head / n_head_kv query heads
//   b = rms_norm(x, ffn_norm); x += swiglu(b), or the routed experts' (softmax over all, the best n_used renormalised)
// State: keys and values of every block.
#include "gguf/keys.h"
#include "model/blocks.h"
#include "model/trunks.h"

namespace onebit {
namespace {

Value qwen3_attention(Plan& plan, const Block& block, Value a) {
  const ModelConfig& c = block.config();
  Value q = linear(plan, a, block.get(keys::kAttnQ, {c.n_head * c.d_head, c.n_embd}));     // [tok, n_head * d_head]
  Value k = linear(plan, a, block.get(keys::kAttnK, {c.n_head_kv * c.d_head, c.n_embd}));  // [tok, n_head_kv * d_head]
  const Value v =
      linear(plan, a, block.get(keys::kAttnV, {c.n_head_kv * c.d_head, c.n_embd}));  // [tok, n_head_kv * d_head]
  q = plan.rms_norm(q, block.get(keys::kAttnQNorm, {c.d_head}), c.eps);
  k = plan.rms_norm(k, block.get(keys::kAttnKNorm, {c.d_head}), c.eps);
  return attend(plan, block, q, k, v, nullptr, nullptr);
}

}  // namespace

Value qwen3_trunk(Plan& plan, Model& model, const Taps* taps) {
  const ModelConfig& c = model.config();
  Value x = plan.embed(model.token_embd());
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const Block block(model, i);
    const Value a = plan.rms_norm(x, block.get(keys::kAttnNorm, {c.n_embd}), c.eps);
    x = plan.add(x, qwen3_attention(plan, block, a));
    const Value b = plan.rms_norm(x, block.get(keys::kFfnNorm, {c.n_embd}), c.eps);
    x = plan.add(x, c.moe() ? moe_ffn(plan, block, b) : swiglu_ffn(plan, block, b));
    tap(plan, taps, i + 1, x);
  }
  return x;
}

}  // namespace onebit
