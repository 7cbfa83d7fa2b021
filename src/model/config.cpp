#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "gguf/keys.h"
#include "model/registry.h"

namespace onebit {
namespace {

// Far above any model, and small enough that products of three counts do not overflow.
constexpr int64_t kMaxCount = int64_t{1} << 26;
constexpr int64_t kMaxBlocks = 1 << 14;
constexpr int64_t kMaxDraftBlock = 1024;

/// Reads the metadata of one file; every number passes a range check here.
struct Reader {
  const GgufFile& file;
  std::string arch;

  int64_t in_range(const std::string& key, int64_t value, int64_t least, int64_t most = kMaxCount) const {
    if (value < least || value > most) {
      refuse("{}: {}: expected a number from {} to {}, found {}", file.path(), key, least, most, value);
    }
    return value;
  }
  int64_t count(const std::string& key) const { return in_range(key, file.require<int64_t>(key), 1); }
  int64_t count_up_to(const std::string& key, int64_t most) const {
    return in_range(key, file.require<int64_t>(key), 1, most);
  }
  int64_t count_or(const std::string& key, int64_t fallback, int64_t least = 0) const {
    return in_range(key, file.get_or<int64_t>(key, fallback), least);
  }
  /// A number, or an array with one for each block whose trunk entries must agree.
  int64_t uniform(const std::string& key, int64_t n_block, int64_t fallback, int64_t least) const {
    const std::vector<int64_t> values = file.get_per_layer<int64_t>(key, n_block);
    if (values.empty()) return in_range(key, fallback, least);
    if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end()) {
      refuse("{}: {}: expected the same number for all blocks, found different ones", file.path(), key);
    }
    return in_range(key, values[0], least);
  }
  float positive(const std::string& key, float value) const {
    if (!std::isfinite(value) || value <= 0)
      refuse("{}: {}: expected a positive number, found {}", file.path(), key, value);
    return value;
  }
  float positive_or(const std::string& key, float fallback) const {
    return positive(key, file.get_or<float>(key, fallback));
  }
};

void read_attention(const Reader& in, int64_t n_block, int64_t n_embd, int64_t& n_head, int64_t& n_head_kv,
                    int64_t& d_head) {
  n_head = in.uniform(keys::head_count(in.arch), n_block, 0, 1);
  n_head_kv = in.uniform(keys::head_count_kv(in.arch), n_block, n_head, 1);
  if (n_head % n_head_kv != 0) {
    refuse("{}: {} query heads can't share {} key heads evenly", in.file.path(), n_head, n_head_kv);
  }
  d_head = in.count_or(keys::key_length(in.arch), n_embd / n_head, 1);
  const int64_t d_value = in.count_or(keys::value_length(in.arch), d_head, 1);
  if (d_value != d_head) {
    refuse("{}: expected keys and values of the same size, found {} and {}", in.file.path(), d_head, d_value);
  }
}

RopeParams read_rope(const Reader& in, int64_t d_head, int64_t n_ctx_train, RopeStyle style) {
  RopeParams rope;
  rope.style = style;
  rope.d_head = d_head;
  rope.n_rot = in.count_or(keys::rope_dimension_count(in.arch), d_head, 1);
  if (rope.n_rot > d_head || rope.n_rot % 2 != 0) {
    refuse("{}: {}: expected an even number up to {}, found {}", in.file.path(), keys::rope_dimension_count(in.arch),
           d_head, rope.n_rot);
  }
  rope.theta = in.positive_or(keys::rope_freq_base(in.arch), 10000);
  const auto type = in.file.get_or<std::string>(keys::rope_scaling_type(in.arch), "none");
  const float factor = in.positive_or(keys::rope_scaling_factor(in.arch), 1);
  if (type == "linear") {
    rope.linear_factor = factor;
  } else if (type == "yarn") {
    rope.yarn_factor = factor;
    rope.n_ctx_orig = in.count_or(keys::rope_original_context(in.arch), n_ctx_train, 1);
    rope.yarn_beta_fast = in.positive_or(keys::yarn_beta_fast(in.arch), 32);
    rope.yarn_beta_slow = in.positive_or(keys::yarn_beta_slow(in.arch), 1);
    rope.yarn_attn_factor = (1 + 0.1f * std::log(factor)) * in.positive_or(keys::rope_attn_factor(in.arch), 1);
  } else if (type != "none") {
    refuse("{}: {}: expected none, linear or yarn, found {}", in.file.path(), keys::rope_scaling_type(in.arch),
           printable(type));
  }
  return rope;
}

void read_experts(const Reader& in, ModelConfig& c) {
  c.n_expert = in.count(keys::expert_count(in.arch));
  c.n_expert_used = in.count(keys::expert_used_count(in.arch));
  if (c.n_expert_used > c.n_expert) {
    refuse("{}: {} experts are used a token but there are {}", in.file.path(), c.n_expert_used, c.n_expert);
  }
  c.n_ff_expert = in.count_or(keys::expert_feed_forward_length(in.arch),
                              in.file.get_or<int64_t>(keys::feed_forward_length(in.arch), 0) / c.n_expert_used, 1);
  c.n_ff_shared = in.count_or(keys::expert_shared_feed_forward_length(in.arch), 0);
}

void read_delta_net(const Reader& in, HeadMap map, ModelConfig& c) {
  DeltaNetParams& d = c.delta_net;
  d.map = map;
  d.eps = 1e-6f;
  d.n_tap = in.count_up_to(keys::ssm_conv_kernel(in.arch), kMaxConvTaps);
  d.d_k = d.d_v = in.count(keys::ssm_state_size(in.arch));
  d.n_k_head = in.count(keys::ssm_group_count(in.arch));
  d.n_v_head = in.count(keys::ssm_time_step_rank(in.arch));
  const int64_t inner = in.count(keys::ssm_inner_size(in.arch));
  if (inner != d.n_v_head * d.d_v || d.n_v_head % d.n_k_head != 0) {
    refuse("{}: delta net sizes disagree: {} value heads of {} give {} (ssm.inner_size says {}), {} key heads",
           in.file.path(), d.n_v_head, d.d_v, d.n_v_head * d.d_v, inner, d.n_k_head);
  }
  c.recurrent = in.file.get_per_layer<bool>(keys::recurrent_layers(in.arch), c.n_layer + c.n_mtp);
  c.recurrent.resize(static_cast<size_t>(c.n_layer), false);
  if (!in.file.has(keys::recurrent_layers(in.arch))) {
    const int64_t interval = in.count_or(keys::full_attention_interval(in.arch), 4, 1);
    for (int64_t i = 0; i < c.n_layer; ++i) c.recurrent[static_cast<size_t>(i)] = (i + 1) % interval != 0;
  }
}

int64_t rows_of(const GgufFile& file, const char* name) {
  const TensorInfo& tensor = file.tensor(name);
  if (tensor.shape.size() != 2)
    refuse("{}: {}: expected 2 dimensions, found {}", file.path(), name, shape_text(tensor.shape));
  return tensor.shape[0];
}

}  // namespace

int64_t DrafterConfig::context_rows() const {
  int64_t rows = 0;
  for (int64_t w : window) {
    if (w == 0) return 0;
    rows = std::max(rows, w - 1);
  }
  return rows;
}

bool is_drafter(const GgufFile& file) { return file.architecture() == kDrafterArchitecture; }

ModelConfig read_model_config(const GgufFile& file) {
  const Architecture& arch = find_architecture(file);
  const Reader in{file, file.architecture()};
  ModelConfig c;
  c.architecture = in.arch;
  const int64_t n_block = in.count_up_to(keys::block_count(in.arch), kMaxBlocks);
  c.n_mtp = in.count_or(keys::nextn_predict_layers(in.arch), 0);
  c.n_layer = in.in_range("blocks before the MTP blocks", n_block - c.n_mtp, 1);
  c.n_embd = in.count(keys::embedding_length(in.arch));
  c.n_vocab = rows_of(file, keys::kTokenEmbd);
  c.n_ctx_train = in.count(keys::context_length(in.arch));
  c.eps = in.positive(keys::rms_epsilon(in.arch), file.require<float>(keys::rms_epsilon(in.arch)));
  read_attention(in, n_block, c.n_embd, c.n_head, c.n_head_kv, c.d_head);
  c.rope = read_rope(in, c.d_head, c.n_ctx_train, arch.rope);
  c.recurrent.assign(static_cast<size_t>(c.n_layer), false);
  if (arch.moe) {
    read_experts(in, c);
  } else {
    c.n_ff = in.uniform(keys::feed_forward_length(in.arch), n_block, 0, 1);
  }
  if (arch.hybrid) read_delta_net(in, arch.head_map, c);
  return c;
}

DrafterConfig read_drafter_config(const GgufFile& file) {
  const Reader in{file, file.architecture()};
  if (!is_drafter(file)) {
    refuse("{}: expected a drafter (general.architecture dflash), found {}", file.path(), printable(in.arch));
  }
  DrafterConfig c;
  c.n_layer = in.count_up_to(keys::block_count(in.arch), kMaxBlocks);
  c.n_embd = in.count(keys::embedding_length(in.arch));
  c.n_ff = in.uniform(keys::feed_forward_length(in.arch), c.n_layer, 0, 1);
  c.eps = in.positive(keys::rms_epsilon(in.arch), file.require<float>(keys::rms_epsilon(in.arch)));
  read_attention(in, c.n_layer, c.n_embd, c.n_head, c.n_head_kv, c.d_head);
  c.rope = read_rope(in, c.d_head, in.count_or(keys::context_length(in.arch), 4096, 1), RopeStyle::neox);
  c.block_size =
      in.in_range(keys::kDflashBlockSize, file.get_or<int64_t>(keys::kDflashBlockSize, 16), 2, kMaxDraftBlock);
  c.mask_token =
      static_cast<int32_t>(in.count_or(keys::kTokenizerMask, file.get_or<int64_t>(keys::kDflashMaskTokenId, -1), 0));
  c.tap_layers = file.require<std::vector<int64_t>>(keys::kDflashTargetLayers);
  if (c.tap_layers.empty()) refuse("{}: {}: expected at least one block", file.path(), keys::kDflashTargetLayers);
  c.causal = file.get_or<bool>(keys::attention_causal(in.arch), false);
  const int64_t window = in.count_or(keys::sliding_window(in.arch), 0);
  std::vector<bool> slides = file.get_per_layer<bool>(keys::sliding_window_pattern(in.arch), c.n_layer);
  slides.resize(static_cast<size_t>(c.n_layer), window > 0);
  for (bool s : slides) c.window.push_back(s ? window : 0);
  c.logit_scale = in.positive_or(keys::kDflashLogitScale, 1);
  c.logit_cap = std::max(0.0f, file.get_or<float>(keys::kDflashFinalLogitSoftcapping, 0));
  c.embedding_scale = in.positive_or(keys::kDflashEmbeddingScale, 1);
  if (file.find(keys::kSelectorHidden)) {
    c.n_conv_tap = static_cast<int32_t>(in.count(keys::kDflashConvKernelSize));
    c.conv_group = static_cast<int32_t>(in.count(keys::kDflashConvGroupSize));
    c.selector_rank = static_cast<int32_t>(in.count(keys::kDflashSelectorRank));
    c.selector_top_k = static_cast<int32_t>(in.count(keys::kDflashSelectorTopK));
    if (c.n_embd % c.conv_group != 0) {
      refuse("{}: {} columns can't be cut into groups of {}", file.path(), c.n_embd, c.conv_group);
    }
  }
  return c;
}

}  // namespace onebit
