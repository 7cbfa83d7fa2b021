// dflash (versions 1 and 2). Two passes that share the key and value projections of every layer:
//   encode: F = the target's taps of accepted tokens, side by side; g = rms_norm(fc F, enc.output_norm);
//     per layer k = rope(rms_norm_head(attn_k g)), v = attn_v g go to that layer's cache. No layer runs over the
//     context.
//   draft: rows [anchor, MASK ...] from the embedding. Per layer, version 2 in brackets:
//     x = rms_norm(h, attn_norm); [x = conv side 0]; q, k, v of x; attention over cache and block, not causal in the
//     block; y = attn_output; [y = conv side 1, coefficients from x]; h += y; x = rms_norm(h, ffn_norm); [conv side 0];
//     swiglu; [conv side 1]; h += y
//   e = rms_norm(h, output_norm); logits = head of e. Version 1 takes the argmax of each row; version 2 lets
//   the selector walk the rows: score(j) = logit_j + sum_r A[previous, r] gamma_r B[j, r] over the k best, gamma =
//   selector_hidden e.
// Norm weights are final multipliers. The anchor's row has no result. Embedding and head are the target's unless the
// file has its own.
#include "model/dflash.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "gguf/keys.h"
#include "model/shapes.h"

namespace onebit {
namespace {

constexpr int32_t kVersion1Candidates = 10;  // confidence of a version 1 draft is taken over this many

}  // namespace

DFlash::DFlash(GgufFile file, Model& target)
    : Drafter(target, read_drafter_config(file)), file_(std::move(file)), weights_(file_, W4a4::none) {
  check_fit();
  const auto n_tap = static_cast<int64_t>(config_.tap_layers.size());
  tap_rows_ = {"taps", RowsState{n_tap * target_.config().n_embd}};
  taps_ = {config_.tap_layers, &tap_rows_};
  encode_plan();  // names and checks every tensor
  draft_plan();
}

void DFlash::check_fit() const {
  const ModelConfig& t = target_.config();
  const std::string& path = file_.path();
  if (config_.n_embd != t.n_embd) {
    refuse("{}: drafter of hidden size {} beside a target of hidden size {} ({})", path, config_.n_embd, t.n_embd,
           target_.file().path());
  }
  for (int64_t layer : config_.tap_layers) {
    if (layer < 1 || layer > t.n_layer) {
      refuse("{}: drafter taps the target after block {}, but the target has {} blocks ({})", path, layer, t.n_layer,
             target_.file().path());
    }
  }
  if (config_.mask_token >= t.n_vocab) {
    refuse("{}: drafter's mask token {} is outside the target's vocabulary of {}", path, config_.mask_token, t.n_vocab);
  }
  if (config_.selector_top_k > t.n_vocab) {
    refuse("{}: drafter chooses among {} candidates, but the target's vocabulary has {}", path, config_.selector_top_k,
           t.n_vocab);
  }
  const auto n_vocab = file_.get_string_views(keys::kTokenizerTokens);
  const auto n_vocab_target = target_.file().get_string_views(keys::kTokenizerTokens);
  if (n_vocab && n_vocab_target && n_vocab->size() != n_vocab_target->size()) {
    refuse("{}: drafter for a vocabulary of {} tokens beside a target with {} ({})", path, n_vocab->size(),
           n_vocab_target->size(), target_.file().path());
  }
  if (file_.find(keys::kDraftToTarget)) {
    refuse("{}: drafters with a vocabulary of their own ({}) are not supported; use one that shares the target's", path,
           keys::kDraftToTarget);
  }
  if (file_.find(keys::block(0, keys::kAttnSinks))) {
    refuse("{}: drafters with attention sinks ({}) are not supported", path, keys::block(0, keys::kAttnSinks));
  }
}

std::vector<std::string> DFlash::unread() const {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : file_.tensors()) {
    const auto& read = weights_.all();
    if (std::none_of(read.begin(), read.end(), [&](const Weight& w) { return w.name == tensor.name; })) {
      names.push_back(tensor.name);
    }
  }
  return names;
}

const Weight& DFlash::own_or(const char* name, const Weight& targets) {
  const Weight* own = weights_.find(name, targets.shape);
  return own ? *own : targets;
}

const Weight& DFlash::block_weight(int64_t index, const char* role, const std::vector<int64_t>& shape) {
  return weights_.get(keys::block(index, role), shape);
}

std::pair<Value, Value> DFlash::keys_values(Plan& plan, int64_t index, Value x) {
  const DrafterConfig& c = config_;
  const int64_t width = c.n_head_kv * c.d_head;
  Value k = linear(plan, x, block_weight(index, keys::kAttnK, {width, c.n_embd}));        // [tok, n_head_kv * d_head]
  const Value v = linear(plan, x, block_weight(index, keys::kAttnV, {width, c.n_embd}));  // [tok, n_head_kv * d_head]
  k = plan.rms_norm(k, block_weight(index, keys::kAttnKNorm, {c.d_head}), c.eps);
  RopeParams rope = c.rope;
  rope.n_head = c.n_head_kv;
  return {plan.rope(k, rope, nullptr), v};
}

Plan DFlash::encode_plan() {
  const DrafterConfig& c = config_;
  Plan plan("dflash encode");
  const Value taps = plan.load_rows(tap_rows_);                                              // [tok, n_tap * n_embd]
  Value g = linear(plan, taps, weights_.get(keys::kFc, {c.n_embd, plan.info(taps).width}));  // [tok, n_embd]
  g = plan.rms_norm(g, weights_.get(keys::kEncOutputNorm, {c.n_embd}), c.eps);
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const auto [k, v] = keys_values(plan, i, g);
    plan.kv_store(k, v, cache(i));
  }
  return plan;
}

template <typename Sublayer>
Value DFlash::convolved(Plan& plan, int64_t index, const char* base, const char* proj, Value x, Sublayer sublayer) {
  const DrafterConfig& c = config_;
  if (c.version() == 1) return sublayer(x);
  const Weight& kernel = block_weight(index, base, {2, c.n_conv_tap, c.n_embd});
  const Value delta =
      linear(plan, x, block_weight(index, proj, {2 * c.n_conv_tap * (c.n_embd / c.conv_group), c.n_embd}));
  const Value y =
      sublayer(plan.block_conv(x, kernel, delta, {.side = 0, .n_tap = c.n_conv_tap, .group = c.conv_group}));
  return plan.block_conv(y, kernel, delta, {.side = 1, .n_tap = c.n_conv_tap, .group = c.conv_group});
}

Value DFlash::attention(Plan& plan, int64_t index, Value x) {
  const DrafterConfig& c = config_;
  Value q =
      linear(plan, x, block_weight(index, keys::kAttnQ, {c.n_head * c.d_head, c.n_embd}));  // [tok, n_head * d_head]
  q = plan.rms_norm(q, block_weight(index, keys::kAttnQNorm, {c.d_head}), c.eps);
  RopeParams rope = c.rope;
  rope.n_head = c.n_head;
  q = plan.rope(q, rope, nullptr);
  const auto [k, v] = keys_values(plan, index, x);
  const Value y = plan.block_attention(q, k, v, cache(index),
                                       {.n_head = c.n_head,
                                        .n_head_kv = c.n_head_kv,
                                        .d_head = c.d_head,
                                        .scale = 1 / std::sqrt(static_cast<float>(c.d_head)),
                                        .window = c.window[static_cast<size_t>(index)],
                                        .causal = c.causal});
  return linear(plan, y, block_weight(index, keys::kAttnOutput, {c.n_embd, c.n_head * c.d_head}));
}

Value DFlash::ffn(Plan& plan, int64_t index, Value x) {
  const DrafterConfig& c = config_;
  const Value gate = linear(plan, x, block_weight(index, keys::kFfnGate, {c.n_ff, c.n_embd}));
  const Value up = linear(plan, x, block_weight(index, keys::kFfnUp, {c.n_ff, c.n_embd}));
  return linear(plan, plan.swiglu(gate, up), block_weight(index, keys::kFfnDown, {c.n_embd, c.n_ff}));
}

Value DFlash::draft_layer(Plan& plan, int64_t index, Value h) {
  const DrafterConfig& c = config_;
  const Value a = plan.rms_norm(h, block_weight(index, keys::kAttnNorm, {c.n_embd}), c.eps);
  h = plan.add(h, convolved(plan, index, keys::kAttnConvBase, keys::kAttnConvProj, a,
                            [&](Value x) { return attention(plan, index, x); }));
  const Value b = plan.rms_norm(h, block_weight(index, keys::kFfnNorm, {c.n_embd}), c.eps);
  return plan.add(h, convolved(plan, index, keys::kFfnConvBase, keys::kFfnConvProj, b,
                               [&](Value x) { return ffn(plan, index, x); }));
}

Plan DFlash::draft_plan() {
  const DrafterConfig& c = config_;
  Plan plan("dflash draft");
  Value h = plan.embed(own_or(keys::kTokenEmbd, target_.token_embd()));  // [tok, n_embd]
  if (c.embedding_scale != 1) h = plan.softcap(h, c.embedding_scale, 0);
  for (int64_t i = 0; i < c.n_layer; ++i) h = draft_layer(plan, i, h);
  const Value rows = plan.gather_rows(h);  // [out, n_embd]
  const Value e = plan.rms_norm(rows, weights_.get(keys::kOutputNorm, {c.n_embd}), c.eps);
  Value logits = linear(plan, e, own_or(keys::kOutput, target_.head()));  // [out, n_vocab]
  if (c.version() == 2 && (c.logit_scale != 1 || c.logit_cap > 0))
    logits = plan.softcap(logits, c.logit_scale, c.logit_cap);
  select(plan, e, logits);
  return plan;
}

void DFlash::select(Plan& plan, Value hidden, Value logits) {
  const DrafterConfig& c = config_;
  const int64_t n_vocab = target_.config().n_vocab;
  if (c.version() == 1) {
    const auto [candidates, scores] =
        plan.top_k(logits, static_cast<int32_t>(std::min<int64_t>(kVersion1Candidates, n_vocab)));
    plan.output("candidates", candidates);
    plan.output("scores", scores);
    return;
  }
  const auto [candidates, unary] = plan.top_k(logits, c.selector_top_k);
  const Value gamma =
      linear(plan, hidden, weights_.get(keys::kSelectorHidden, {c.selector_rank, c.n_embd}));  // [out, rank]
  const Plan::Walk walk =
      plan.select_walk(candidates, unary, gamma, weights_.get(keys::kSelectorPredecessor, {n_vocab, c.selector_rank}),
                       weights_.get(keys::kSelectorSuccessor, {n_vocab, c.selector_rank}));
  plan.output("ids", walk.ids);
  plan.output("confidence", walk.confidence);
  plan.output("candidates", candidates);
  plan.output("scores", walk.scores);
}

}  // namespace onebit
