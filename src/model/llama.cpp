// llama: as qwen3 without the norms of q and k. Rotary embedding pairs neighbours (2i, 2i + 1), its angles divided by
// rope_freqs when the file has them (Llama 3.1 scaling). State: keys and values of every block.
#include "gguf/keys.h"
#include "model/blocks.h"
#include "model/trunks.h"

namespace onebit {
namespace {

Value llama_attention(Plan& plan, const Block& block, Value a, const Weight* rope_factors) {
  const ModelConfig& c = block.config();
  const Value q = linear(plan, a, block.get(keys::kAttnQ, {c.n_head * c.d_head, c.n_embd}));  // [tok, n_head * d_head]
  const Value k =
      linear(plan, a, block.get(keys::kAttnK, {c.n_head_kv * c.d_head, c.n_embd}));  // [tok, n_head_kv * d_head]
  const Value v =
      linear(plan, a, block.get(keys::kAttnV, {c.n_head_kv * c.d_head, c.n_embd}));  // [tok, n_head_kv * d_head]
  return attend(plan, block, q, k, v, nullptr, rope_factors);
}

}  // namespace

Value llama_trunk(Plan& plan, Model& model, const Taps* taps) {
  const ModelConfig& c = model.config();
  const Weight* factors = model.mutable_weights().find(keys::kRopeFreqs, {c.rope.n_rot / 2});
  Value x = plan.embed(model.token_embd());
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const Block block(model, i);
    const Value a = plan.rms_norm(x, block.get(keys::kAttnNorm, {c.n_embd}), c.eps);
    x = plan.add(x, llama_attention(plan, block, a, factors));
    const Value b = plan.rms_norm(x, block.get(keys::kFfnNorm, {c.n_embd}), c.eps);
    x = plan.add(x, swiglu_ffn(plan, block, b));
    tap(plan, taps, i + 1, x);
  }
  return x;
}

}  // namespace onebit
