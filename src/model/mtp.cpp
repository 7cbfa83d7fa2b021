// qwen3.5's nextn block. For the token x at position t and h, the target's hidden state of position t - 1 behind its
// final norm (zero before the first token):
//   c = eh_proj [rms_norm(embed(x), enorm); rms_norm(h, hnorm)]
//   a = rms_norm(c, attn_norm); gated attention as in the trunk's attention blocks, with a cache of its own
//   c += that; c += feed-forward(rms_norm(c, post_attention_norm))
//   h' = rms_norm(c, shared_head_norm); logits of the token at t + 1 = head h'
// Drafting goes on from h' in place of h. The cache holds every position: accepted tokens only need k and v, which
// depend on c alone.
#include "model/mtp.h"

#include <cmath>

#include "base/error.h"
#include "gguf/blocks.h"
#include "gguf/keys.h"
#include "model/blocks.h"

namespace onebit {
namespace {

constexpr int32_t kCandidates = 10;  // confidence is taken over this many
constexpr int64_t kBlock = 8;        // the anchor and at most seven drafted tokens

int64_t n_mtp_of(const GgufFile& file) {
  return file.get_or<int64_t>(keys::nextn_predict_layers(file.architecture()), 0);
}

DrafterConfig config_of(const ModelConfig& target) {
  DrafterConfig c;
  c.n_layer = 1;
  c.n_embd = target.n_embd, c.n_ff = target.n_ff;
  c.n_head = target.n_head, c.n_head_kv = target.n_head_kv, c.d_head = target.d_head;
  c.eps = target.eps;
  c.rope = target.rope;
  c.block_size = kBlock;
  c.window = {0};
  return c;
}

}  // namespace

bool has_mtp_head(const GgufFile& file) { return n_mtp_of(file) > 0; }

MtpHead::MtpHead(Model& target) : MtpHead(std::nullopt, target) {}
MtpHead::MtpHead(GgufFile file, Model& target) : MtpHead(std::optional<GgufFile>(std::move(file)), target) {}

MtpHead::MtpHead(std::optional<GgufFile> file, Model& target)
    : Drafter(target, config_of(target.config())),
      own_file_(std::move(file)),
      own_weights_(own_file_ ? std::make_optional<Weights>(*own_file_, W4a4::none) : std::nullopt),
      weights_(own_weights_ ? *own_weights_ : target.mutable_weights()) {
  check_fit();
  index_ = this->file().get_or<int64_t>(keys::block_count(this->file().architecture()), 0) - n_mtp_of(this->file());
  tap_rows_ = {"taps", RowsState{config_.n_embd}};
  taps_ = {{}, &tap_rows_, true};
  split_projection();
  encode_plan();  // names and checks every tensor
  draft_plan();
}

void MtpHead::check_fit() const {
  const ModelConfig& t = target_.config();
  const GgufFile& f = file();
  if (!has_mtp_head(f)) {
    refuse("{}: no multi-token head ({} is 0 or missing); use a file that has one, or --dflash", f.path(),
           keys::nextn_predict_layers(f.architecture()));
  }
  if (f.architecture() != t.architecture || !t.hybrid()) {
    refuse("{}: a multi-token head of {} beside a target of {} ({}); heads of qwen3.5-like models are understood",
           f.path(), f.architecture(), t.architecture, target_.file().path());
  }
  const auto n_embd = f.get_or<int64_t>(keys::embedding_length(f.architecture()), 0);
  if (n_embd != t.n_embd) {
    refuse("{}: a multi-token head of hidden size {} beside a target of hidden size {} ({})", f.path(), n_embd,
           t.n_embd, target_.file().path());
  }
}

/// eh_proj takes [embedding; hidden]: W [e; h] = W_left e + W_right h.
void MtpHead::split_projection() {
  const int64_t n = config_.n_embd;
  const Weight& whole = get(keys::kNextnEhProj, {n, 2 * n});
  const int64_t bytes = row_bytes(whole.type, 2 * n) / 2;
  if (n % type_info(whole.type).block_elems != 0) {
    refuse("{}: {} of type {} can't be divided after {} columns", file().path(), whole.name, type_name(whole.type), n);
  }
  for (int half = 0; half < 2; ++half) {
    std::vector<uint8_t>& to = half_bytes_[half];
    for (int64_t row = 0; row < n; ++row) {
      const auto from = whole.data.begin() + (2 * row + half) * bytes;
      to.insert(to.end(), from, from + bytes);
    }
    halves_[half] = whole;
    halves_[half].name += half == 0 ? " (embedding)" : " (hidden)";
    halves_[half].shape = {n, n};
    halves_[half].data = to;
  }
}

const Weight& MtpHead::get(const char* role, const std::vector<int64_t>& shape) {
  return weights_.get(keys::block(index_, role), shape);
}

const Weight& MtpHead::norm_of(const char* role) { return get(role, {config_.n_embd}); }

const Weight& MtpHead::embedding() {
  const Weight* own =
      weights_.find(keys::block(index_, keys::kNextnEmbedTokens), {target_.config().n_vocab, config_.n_embd});
  return own ? *own : target_.token_embd();
}

const Weight& MtpHead::head() {
  const Weight* own =
      weights_.find(keys::block(index_, keys::kNextnSharedHeadHead), {target_.config().n_vocab, config_.n_embd});
  return own ? *own : target_.head();
}

Value MtpHead::joined(Plan& plan) {
  const Value e = plan.rms_norm(plan.embed(embedding()), norm_of(keys::kNextnEnorm), config_.eps);
  const Value h = plan.rms_norm(plan.load_rows(tap_rows_), norm_of(keys::kNextnHnorm), config_.eps);
  return plan.add(linear(plan, e, halves_[0]), linear(plan, h, halves_[1]));
}

void MtpHead::store_keys_values(Plan& plan, Value a) {
  const DrafterConfig& c = config_;
  const int64_t width = c.n_head_kv * c.d_head;
  Value k = linear(plan, a, get(keys::kAttnK, {width, c.n_embd}));
  const Value v = linear(plan, a, get(keys::kAttnV, {width, c.n_embd}));
  k = plan.rms_norm(k, get(keys::kAttnKNorm, {c.d_head}), c.eps);
  plan.kv_store(plan.rope(k, rope_for(target_.config(), c.n_head_kv), nullptr), v, cache(0));
}

Value MtpHead::attention(Plan& plan, Value a) {
  const DrafterConfig& c = config_;
  const int64_t d = c.d_head;
  const Value qg = linear(plan, a, get(keys::kAttnQ, {c.n_head * 2 * d, c.n_embd}));
  Value q = plan.slice_heads(qg, {.n_group = c.n_head, .stride = 2 * d, .offset = 0, .length = d});
  const Value gate = plan.slice_heads(qg, {.n_group = c.n_head, .stride = 2 * d, .offset = d, .length = d});
  q = plan.rms_norm(q, get(keys::kAttnQNorm, {d}), c.eps);
  q = plan.rope(q, rope_for(target_.config(), c.n_head), nullptr);
  store_keys_values(plan, a);
  const Value y = plan.attention(
      q, cache(0),
      {.n_head = c.n_head, .n_head_kv = c.n_head_kv, .d_head = d, .scale = 1 / std::sqrt(static_cast<float>(d))});
  return linear(plan, plan.sigmoid_mul(y, gate), get(keys::kAttnOutput, {c.n_embd, c.n_head * d}));
}

Value MtpHead::ffn(Plan& plan, Value x) {
  const Block block(target_, weights_, index_);
  return target_.config().moe() ? moe_ffn(plan, block, x) : swiglu_ffn(plan, block, x);
}

Plan MtpHead::encode_plan() {
  Plan plan("mtp encode");
  store_keys_values(plan, plan.rms_norm(joined(plan), norm_of(keys::kAttnNorm), config_.eps));
  return plan;
}

Plan MtpHead::draft_plan() {
  Plan plan("mtp draft");
  Value c = joined(plan);
  c = plan.add(c, attention(plan, plan.rms_norm(c, norm_of(keys::kAttnNorm), config_.eps)));
  c = plan.add(c, ffn(plan, plan.rms_norm(c, norm_of(keys::kPostAttentionNorm), config_.eps)));
  const Weight* own_norm = weights_.find(keys::block(index_, keys::kNextnSharedHeadNorm), {config_.n_embd});
  const Weight& norm = own_norm ? *own_norm : target_.mutable_weights().get(keys::kOutputNorm, {config_.n_embd});
  const Value h = plan.rms_norm(c, norm, config_.eps);
  plan.store_rows(h, tap_rows_, 0);
  const Value logits = linear(plan, plan.gather_rows(h), head());
  const auto [candidates, scores] =
      plan.top_k(logits, static_cast<int32_t>(std::min<int64_t>(kCandidates, target_.config().n_vocab)));
  plan.output("candidates", candidates);
  plan.output("scores", scores);
  return plan;
}

}  // namespace onebit
