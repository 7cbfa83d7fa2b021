#include "model/blocks.h"

#include <cmath>

#include "gguf/keys.h"

namespace onebit {

const Weight& Block::get(const char* role, const std::vector<int64_t>& shape) const {
  return weights_.get(keys::block(index_, role), shape);
}

const Weight* Block::find(const char* role, const std::vector<int64_t>& shape) const {
  return weights_.find(keys::block(index_, role), shape);
}

const State& Block::state(decltype(State::kind) kind) const {
  return model_.state(keys::block(index_, "state"), std::move(kind));
}

RopeParams rope_for(const ModelConfig& config, int64_t n_head) {
  RopeParams rope = config.rope;
  rope.n_head = n_head;
  return rope;
}

Value attend(Plan& plan, const Block& block, Value q, Value k, Value v, const Value* gate, const Weight* rope_factors) {
  const ModelConfig& c = block.config();
  const State& cache = block.state(KvState{c.n_head_kv, c.d_head});
  q = plan.rope(q, rope_for(c, c.n_head), rope_factors);
  k = plan.rope(k, rope_for(c, c.n_head_kv), rope_factors);
  plan.kv_store(k, v, cache);
  Value y = plan.attention(q, cache,
                           {.n_head = c.n_head,
                            .n_head_kv = c.n_head_kv,
                            .d_head = c.d_head,
                            .scale = 1 / std::sqrt(static_cast<float>(c.d_head))});  // [tok, n_head * d_head]
  if (gate) y = plan.sigmoid_mul(y, *gate);
  return linear(plan, y, block.get(keys::kAttnOutput, {c.n_embd, c.n_head * c.d_head}));
}

Value swiglu_ffn(Plan& plan, const Block& block, Value x) {
  const ModelConfig& c = block.config();
  const Value gate = linear(plan, x, block.get(keys::kFfnGate, {c.n_ff, c.n_embd}));
  const Value up = linear(plan, x, block.get(keys::kFfnUp, {c.n_ff, c.n_embd}));
  return linear(plan, plan.swiglu(gate, up), block.get(keys::kFfnDown, {c.n_embd, c.n_ff}));
}

namespace {

/// silu(gate) * up of every selected expert [tok * n_expert_used, n_ff_expert]; gate and up may be one fused stack.
Value expert_hidden(Plan& plan, const Block& block, Value x, Value ids) {
  const ModelConfig& c = block.config();
  const int64_t ff = c.n_ff_expert;
  if (const Weight* fused = block.find(keys::kFfnGateUpExps, {c.n_expert, 2 * ff, c.n_embd})) {
    const Value both = linear_experts(plan, x, *fused, ids);
    const Value gate = plan.slice_heads(both, {.n_group = 1, .stride = 2 * ff, .offset = 0, .length = ff});
    const Value up = plan.slice_heads(both, {.n_group = 1, .stride = 2 * ff, .offset = ff, .length = ff});
    return plan.swiglu(gate, up);
  }
  const Value gate = linear_experts(plan, x, block.get(keys::kFfnGateExps, {c.n_expert, ff, c.n_embd}), ids);
  const Value up = linear_experts(plan, x, block.get(keys::kFfnUpExps, {c.n_expert, ff, c.n_embd}), ids);
  return plan.swiglu(gate, up);
}

Value shared_expert(Plan& plan, const Block& block, Value x) {
  const ModelConfig& c = block.config();
  const Value gate = linear(plan, x, block.get(keys::kFfnGateShexp, {c.n_ff_shared, c.n_embd}));
  const Value up = linear(plan, x, block.get(keys::kFfnUpShexp, {c.n_ff_shared, c.n_embd}));
  const Value y = linear(plan, plan.swiglu(gate, up), block.get(keys::kFfnDownShexp, {c.n_embd, c.n_ff_shared}));
  const Weight* open = block.find(keys::kFfnGateInpShexp, {1, c.n_embd});
  return open ? plan.sigmoid_mul(y, linear(plan, x, *open)) : y;
}

}  // namespace

Value moe_ffn(Plan& plan, const Block& block, Value x) {
  const ModelConfig& c = block.config();
  const Value logits = linear(plan, x, block.get(keys::kFfnGateInp, {c.n_expert, c.n_embd}));  // [tok, n_expert]
  const auto [ids, weights] = plan.route(logits, {.n_used = static_cast<int32_t>(c.n_expert_used)});
  const Value hidden = expert_hidden(plan, block, x, ids);
  const Value out =
      linear_experts(plan, hidden, block.get(keys::kFfnDownExps, {c.n_expert, c.n_embd, c.n_ff_expert}), ids);
  const Value routed = plan.combine_experts(out, weights);  // [tok, n_embd]
  return c.n_ff_shared > 0 ? plan.add(routed, shared_expert(plan, block, x)) : routed;
}

void tap(Plan& plan, const Taps* taps, int64_t layer, Value x) {
  if (!taps) return;
  const int64_t width = plan.info(x).width;
  for (size_t i = 0; i < taps->layers.size(); ++i) {
    if (taps->layers[i] == layer) plan.store_rows(x, *taps->rows, static_cast<int64_t>(i) * width);
  }
}

}  // namespace onebit
