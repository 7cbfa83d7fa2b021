// Names and orders. Where the checkpoint's order equals the file's, a tensor is one line of a table; the others have a
// function of their own.
#include "convert/hf_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "gguf/blocks.h"
#include "gguf/file.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

struct NamePair {
  std::string_view hf;
  const char* gguf;
};

// Tensors of a whole model, after "model." and "language_model." are taken off.
constexpr NamePair kGlobals[] = {
    {"embed_tokens.weight", keys::kTokenEmbd}, {"norm.weight", keys::kOutputNorm}, {"lm_head.weight", keys::kOutput}};
constexpr NamePair kDrafterGlobals[] = {{"fc.weight", keys::kFc},
                                        {"hidden_norm.weight", keys::kEncOutputNorm},
                                        {"candidate_selector.predecessor_codebook", keys::kSelectorPredecessor},
                                        {"candidate_selector.predecessor_codebook.weight", keys::kSelectorPredecessor},
                                        {"candidate_selector.successor_codebook", keys::kSelectorSuccessor},
                                        {"candidate_selector.successor_codebook.weight", keys::kSelectorSuccessor},
                                        {"candidate_selector.hidden_projection.weight", keys::kSelectorHidden}};

// Tensors of a block, after "layers.N.".
constexpr NamePair kBlock[] = {
    {"input_layernorm.weight", keys::kAttnNorm},    {"self_attn.q_proj.weight", keys::kAttnQ},
    {"self_attn.k_proj.weight", keys::kAttnK},      {"self_attn.v_proj.weight", keys::kAttnV},
    {"self_attn.o_proj.weight", keys::kAttnOutput}, {"self_attn.q_norm.weight", keys::kAttnQNorm},
    {"self_attn.k_norm.weight", keys::kAttnKNorm},  {"mlp.gate_proj.weight", keys::kFfnGate},
    {"mlp.up_proj.weight", keys::kFfnUp},           {"mlp.down_proj.weight", keys::kFfnDown}};
constexpr NamePair kPlainNorm[] = {{"post_attention_layernorm.weight", keys::kFfnNorm}};
constexpr NamePair kHybridNorm[] = {{"post_attention_layernorm.weight", keys::kPostAttentionNorm}};
constexpr NamePair kMixture[] = {{"mlp.gate.weight", keys::kFfnGateInp},
                                 {"mlp.shared_expert.gate_proj.weight", keys::kFfnGateShexp},
                                 {"mlp.shared_expert.up_proj.weight", keys::kFfnUpShexp},
                                 {"mlp.shared_expert.down_proj.weight", keys::kFfnDownShexp},
                                 {"mlp.experts.down_proj", keys::kFfnDownExps}};
constexpr NamePair kDrafterBlock[] = {{"attention_conv.base_kernel", keys::kAttnConvBase},
                                      {"attention_conv.kernel_projection.weight", keys::kAttnConvProj},
                                      {"mlp_conv.base_kernel", keys::kFfnConvBase},
                                      {"mlp_conv.kernel_projection.weight", keys::kFfnConvProj},
                                      {"self_attn.attention_sink_bias", keys::kAttnSinks}};
constexpr NamePair kDeltaNet[] = {{"linear_attn.norm.weight", keys::kSsmNorm},
                                  {"linear_attn.in_proj_ba.weight", keys::kSsmBa}};
constexpr NamePair kMtpHead[] = {{"fc.weight", keys::kNextnEhProj},
                                 {"pre_fc_norm_embedding.weight", keys::kNextnEnorm},
                                 {"pre_fc_norm_hidden.weight", keys::kNextnHnorm},
                                 {"norm.weight", keys::kNextnSharedHeadNorm},
                                 {"embed_tokens.weight", keys::kNextnEmbedTokens},
                                 {"lm_head.weight", keys::kNextnSharedHeadHead}};
constexpr NamePair kExperts[] = {{"gate_proj.weight", keys::kFfnGateExps},
                                 {"up_proj.weight", keys::kFfnUpExps},
                                 {"down_proj.weight", keys::kFfnDownExps}};

template <size_t N>
const char* look_up(const NamePair (&table)[N], std::string_view hf) {
  const auto found = std::find_if(table, table + N, [&](const NamePair& pair) { return pair.hf == hf; });
  return found == table + N ? nullptr : found->gguf;
}

/// Takes "NUMBER." off the front.
std::optional<int64_t> take_index(std::string_view& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good =
      error == std::errc() && end != text.data() + text.size() && *end == '.' && value >= 0 && value < 100000;
  if (!good) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return value;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Parts of a checkpoint that text models don't use, and buffers that are computed anew.
bool is_ignored(std::string_view name) {
  const auto contains = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  return name.starts_with("visual.") || contains(".visual.") || contains("vision") || contains("audio") ||
         name.starts_with("merger.") || name.ends_with("rotary_emb.inv_freq");
}

/// The order of value heads. Those that share a key head lie together in the checkpoint; in the file, heads with the
/// same place in their group do.
struct HeadOrder {
  int64_t n_k_head, n_v_head;

  /// The checkpoint's head for head h of the file.
  int64_t source(int64_t h) const { return h % n_k_head * (n_v_head / n_k_head) + h / n_k_head; }
};

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const HfModel& model) : checkpoint_(checkpoint), model_(model) {}

  HfOutputs plan() {
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (!is_ignored(name)) place(tensor);
    }
    stack_experts();
    add_rope_factors();
    if (outputs_.empty()) refuse("{}: the checkpoint holds no tensor of a text model", model_.config.where());
    HfOutputs out;
    out.n_mtp = n_mtp_;
    for (auto& [key, tensor] : outputs_) out.tensors.push_back(std::move(tensor));
    return out;
  }

 private:
  static constexpr int64_t kGlobal = -1;

  // --- names --------------------------------------------------------------------------------------------------------

  void place(const HfTensor& tensor) {
    std::string text = tensor.name;
    if (const size_t at = text.find("language_model."); at != std::string::npos) text.erase(at, 15);
    std::string_view name = text;
    take_prefix(name, "model.");
    bool placed = false;
    if (take_prefix(name, "layers.")) {
      const auto layer = take_index(name);
      placed = layer && *layer < model_.n_layer && place_in_block(tensor, *layer, name);
    } else if (take_prefix(name, "mtp.")) {
      placed = model_.hybrid() && place_mtp(tensor, name);
    } else {
      placed = place_global(tensor, name);
    }
    if (!placed) {
      refuse("{}: tensor {} has no place in a {} model of {} blocks", model_.config.where(), printable(tensor.name),
             model_.architecture, model_.n_layer);
    }
  }

  bool place_global(const HfTensor& tensor, std::string_view name) {
    if (model_.drafter() && name == "embed_tokens.weight" && !flag("has_embed_tokens")) return true;
    const char* gguf = look_up(kGlobals, name);
    if (!gguf && model_.drafter()) gguf = look_up(kDrafterGlobals, name);
    if (gguf) add(kGlobal, gguf, as_is(tensor));
    return gguf != nullptr;
  }

  bool place_mtp(const HfTensor& tensor, std::string_view name) {
    int64_t index = 0;
    if (take_prefix(name, "layers.")) {
      const auto layer = take_index(name);
      if (!layer || *layer >= 64 || !place_in_block(tensor, model_.n_layer + *layer, name)) return false;
      index = *layer;
    } else if (const char* gguf = look_up(kMtpHead, name)) {
      add(model_.n_layer, gguf, as_is(tensor));
    } else {
      return false;
    }
    n_mtp_ = std::max(n_mtp_, index + 1);
    return true;
  }

  bool place_in_block(const HfTensor& tensor, int64_t block, std::string_view name) {
    if (model_.architecture == "llama" && place_llama_attention(tensor, block, name)) return true;
    if (model_.drafter() && !flag("rope_is_neox_style") && place_interleaved_attention(tensor, block, name))
      return true;
    const char* gguf = look_up(kBlock, name);
    if (!gguf) gguf = model_.hybrid() ? look_up(kHybridNorm, name) : look_up(kPlainNorm, name);
    if (!gguf && model_.moe()) gguf = look_up(kMixture, name);
    if (!gguf && model_.drafter()) gguf = look_up(kDrafterBlock, name);
    if (!gguf && model_.hybrid()) gguf = look_up(kDeltaNet, name);
    if (gguf) {
      add(block, gguf, as_is(tensor));
      return true;
    }
    if (model_.moe() && place_experts(tensor, block, name)) return true;
    if (!model_.hybrid()) return false;
    return model_.architecture == "qwen3next" ? place_fused_delta_net(tensor, block, name)
                                              : place_delta_net(tensor, block, name);
  }

  /// A field of the config that is true unless it says otherwise.
  bool flag(const char* field) const { return model_.config.flag(field).value_or(true); }

  // --- outputs ------------------------------------------------------------------------------------------------------

  static HfOutput as_is(const HfTensor& tensor) {
    return {"", tensor.shape, [&tensor](int64_t row) { return RowOrigin{&tensor, row}; }};
  }

  void add(int64_t block, const char* gguf, HfOutput output) {
    output.name = block == kGlobal ? gguf : keys::block(block, gguf);
    if (model_.hybrid() && stored_minus_one(gguf)) output.change = ValueChange::plus_one;
    if (output.values.empty()) check_source(*output.row(0).tensor);
    const std::string name = output.name;
    if (!outputs_.emplace(std::pair(block, name), std::move(output)).second) {
      refuse("{}: two tensors of the checkpoint stand for {}", model_.config.where(), name);
    }
  }

  /// Hybrids keep their norm weights minus one, except that of the gated norm.
  static bool stored_minus_one(std::string_view gguf) {
    constexpr std::string_view kNorms[] = {keys::kOutputNorm, keys::kAttnNorm,           keys::kPostAttentionNorm,
                                           keys::kAttnQNorm,  keys::kAttnKNorm,          keys::kNextnEnorm,
                                           keys::kNextnHnorm, keys::kNextnSharedHeadNorm};
    return std::find(std::begin(kNorms), std::end(kNorms), gguf) != std::end(kNorms);
  }

  void check_source(const HfTensor& tensor) const {
    if (!tensor.type) {
      refuse("{}: tensor {}: expected BF16, F16 or F32, found {}", model_.config.where(), printable(tensor.name),
             tensor.dtype);
    }
    if (tensor.shape.empty() || tensor.shape.size() > 4 || tensor.n_elements() == 0) {
      refuse("{}: tensor {}: expected 1 to 4 sizes above 0, found {}", model_.config.where(), printable(tensor.name),
             shape_text(tensor.shape));
    }
  }

  void expect_shape(const HfTensor& tensor, const std::vector<int64_t>& shape) const {
    if (tensor.shape == shape) return;
    refuse("{}: tensor {}: expected {}, found {}", model_.config.where(), printable(tensor.name), shape_text(shape),
           shape_text(tensor.shape));
  }

  // --- attention of llama -------------------------------------------------------------------------------------------

  /// Rotary pairs are halves of a head in the checkpoint and neighbours in the file.
  bool place_llama_attention(const HfTensor& tensor, int64_t block, std::string_view name) {
    const bool query = name == "self_attn.q_proj.weight", key = name == "self_attn.k_proj.weight";
    if (!query && !key) return false;
    const int64_t d = model_.d_head, n_head = query ? model_.n_head : model_.n_head_kv;
    expect_shape(tensor, {n_head * d, model_.n_embd});
    HfOutput output = as_is(tensor);
    output.row = [&tensor, d](int64_t row) {
      const int64_t in_head = row % d;
      return RowOrigin{&tensor, row - in_head + in_head % 2 * (d / 2) + in_head / 2};
    };
    add(block, query ? keys::kAttnQ : keys::kAttnK, std::move(output));
    return true;
  }

  /// Drafters whose rotary pairs are neighbours in the checkpoint; they are halves of a head in the file.
  bool place_interleaved_attention(const HfTensor& tensor, int64_t block, std::string_view name) {
    const bool query = name == "self_attn.q_proj.weight", key = name == "self_attn.k_proj.weight";
    const bool query_norm = name == "self_attn.q_norm.weight", key_norm = name == "self_attn.k_norm.weight";
    if (!query && !key && !query_norm && !key_norm) return false;
    const int64_t d = model_.d_head, n_head = query ? model_.n_head : model_.n_head_kv;
    const auto source = [d](int64_t i) { return i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1; };
    HfOutput output = as_is(tensor);
    if (query || key) {
      expect_shape(tensor, {n_head * d, model_.n_embd});
      output.row = [&tensor, d, source](int64_t row) { return RowOrigin{&tensor, row - row % d + source(row % d)}; };
      add(block, query ? keys::kAttnQ : keys::kAttnK, std::move(output));
    } else {
      expect_shape(tensor, {d});
      for (int64_t i = 0; i < d; ++i) output.columns.push_back(static_cast<int32_t>(source(i)));
      add(block, query_norm ? keys::kAttnQNorm : keys::kAttnKNorm, std::move(output));
    }
    return true;
  }

  void add_rope_factors() {
    std::vector<float> factors = llama3_factors(model_.rope, model_.d_head);
    if (factors.empty()) return;
    HfOutput output{"", {static_cast<int64_t>(factors.size())}, {}};
    output.values = std::move(factors);
    add(kGlobal, keys::kRopeFreqs, std::move(output));
  }

  // --- gated delta net ----------------------------------------------------------------------------------------------

  /// Rows of a tensor whose rows from `first` on are value heads of `d` rows each.
  HfOutput reordered_rows(const HfTensor& tensor, int64_t first, int64_t d) const {
    HfOutput output = as_is(tensor);
    const HeadOrder order{model_.n_k_head, model_.n_v_head};
    output.row = [order, &tensor, first, d](int64_t row) {
      if (row < first) return RowOrigin{&tensor, row};
      const int64_t head = (row - first) / d;
      return RowOrigin{&tensor, first + order.source(head) * d + (row - first) % d};
    };
    return output;
  }

  HfOutput reordered_columns(const HfTensor& tensor, int64_t d) const {
    HfOutput output = as_is(tensor);
    const HeadOrder order{model_.n_k_head, model_.n_v_head};
    for (int64_t h = 0; h < order.n_v_head; ++h) {
      for (int64_t i = 0; i < d; ++i) output.columns.push_back(static_cast<int32_t>(order.source(h) * d + i));
    }
    return output;
  }

  bool place_delta_net(const HfTensor& tensor, int64_t block, std::string_view name) {
    if (!take_prefix(name, "linear_attn.")) return false;
    const int64_t n_embd = model_.n_embd, n_v = model_.n_v_head, d_v = model_.d_v;
    const int64_t keys_end = 2 * model_.n_k_head * model_.d_k, channels = keys_end + n_v * d_v;
    if (name == "in_proj_qkv.weight") {
      expect_shape(tensor, {channels, n_embd});
      add(block, keys::kAttnQkv, reordered_rows(tensor, keys_end, d_v));
    } else if (name == "in_proj_z.weight") {
      expect_shape(tensor, {n_v * d_v, n_embd});
      add(block, keys::kAttnGate, reordered_rows(tensor, 0, d_v));
    } else if (name == "in_proj_a.weight" || name == "in_proj_b.weight") {
      expect_shape(tensor, {n_v, n_embd});
      add(block, name == "in_proj_a.weight" ? keys::kSsmAlpha : keys::kSsmBeta, reordered_rows(tensor, 0, 1));
    } else if (name == "conv1d.weight") {
      add(block, keys::kSsmConv1d, convolution(tensor, channels, reordered_rows(tensor, keys_end, d_v)));
    } else if (name == "out_proj.weight") {
      expect_shape(tensor, {n_embd, n_v * d_v});
      add(block, keys::kSsmOut, reordered_columns(tensor, d_v));
    } else {
      return place_decay(tensor, block, name, reordered_columns(tensor, 1));
    }
    return true;
  }

  /// The two vectors with a number per value head.
  bool place_decay(const HfTensor& tensor, int64_t block, std::string_view name, HfOutput output) {
    if (name != "A_log" && name != "dt_bias") return false;
    expect_shape(tensor, {model_.n_v_head});
    if (name == "A_log") output.change = ValueChange::minus_exp;
    add(block, name == "A_log" ? keys::kSsmA : keys::kSsmDtBias, std::move(output));
    return true;
  }

  /// [channels, 1, taps] without its middle dimension.
  HfOutput convolution(const HfTensor& tensor, int64_t channels, HfOutput output) const {
    expect_shape(tensor, {channels, 1, model_.config.count("linear_conv_kernel_dim")});
    output.shape = {channels, tensor.shape.back()};
    return output;
  }

  /// Qwen3-Next: per key head the rows of q, k, its value heads' v, their z; no order of heads changes.
  bool place_fused_delta_net(const HfTensor& tensor, int64_t block, std::string_view name) {
    if (!take_prefix(name, "linear_attn.")) return false;
    const int64_t n_k = model_.n_k_head, d_k = model_.d_k, values = model_.n_v_head / n_k * model_.d_v;
    const int64_t group = 2 * d_k + 2 * values, keys_end = 2 * n_k * d_k;
    if (name == "in_proj_qkvz.weight") {
      expect_shape(tensor, {n_k * group, model_.n_embd});
      HfOutput qkv = as_is(tensor), z = as_is(tensor);
      qkv.shape = {keys_end + n_k * values, model_.n_embd};
      qkv.row = [=, &tensor](int64_t row) {
        if (row < n_k * d_k) return RowOrigin{&tensor, row / d_k * group + row % d_k};
        if (row < keys_end) return RowOrigin{&tensor, (row - n_k * d_k) / d_k * group + d_k + row % d_k};
        return RowOrigin{&tensor, (row - keys_end) / values * group + 2 * d_k + (row - keys_end) % values};
      };
      z.shape = {n_k * values, model_.n_embd};
      z.row = [=, &tensor](int64_t row) {
        return RowOrigin{&tensor, row / values * group + 2 * d_k + values + row % values};
      };
      add(block, keys::kAttnQkv, std::move(qkv));
      add(block, keys::kAttnGate, std::move(z));
    } else if (name == "conv1d.weight") {
      add(block, keys::kSsmConv1d, convolution(tensor, keys_end + n_k * values, as_is(tensor)));
    } else if (name == "out_proj.weight") {
      expect_shape(tensor, {model_.n_embd, n_k * values});
      add(block, keys::kSsmOut, as_is(tensor));
    } else {
      return place_decay(tensor, block, name, as_is(tensor));
    }
    return true;
  }

  // --- experts ------------------------------------------------------------------------------------------------------

  bool place_experts(const HfTensor& tensor, int64_t block, std::string_view name) {
    if (name == "mlp.shared_expert_gate.weight") {
      expect_shape(tensor, {1, model_.n_embd});
      add(block, keys::kFfnGateInpShexp, as_is(tensor));
      return true;
    }
    if (!take_prefix(name, "mlp.experts.")) return false;
    if (name == "gate_up_proj") return split_gate_up(tensor, block);
    const auto expert = take_index(name);
    const char* gguf = look_up(kExperts, name);
    if (!expert || *expert >= model_.n_expert || !gguf) return false;
    auto& group = experts_[{block, gguf}];
    group.resize(static_cast<size_t>(model_.n_expert));
    group[static_cast<size_t>(*expert)] = &tensor;
    return true;
  }

  /// [n_expert, 2 * n_ff, n_embd]: the gate's rows of an expert, then its up rows.
  bool split_gate_up(const HfTensor& tensor, int64_t block) {
    const int64_t n_ff = model_.config.count("moe_intermediate_size");
    expect_shape(tensor, {model_.n_expert, 2 * n_ff, model_.n_embd});
    for (const int64_t half : {0, 1}) {
      HfOutput output = as_is(tensor);
      output.shape[1] = n_ff;
      output.row = [&tensor, n_ff, half](int64_t row) {
        return RowOrigin{&tensor, row / n_ff * 2 * n_ff + half * n_ff + row % n_ff};
      };
      add(block, half == 0 ? keys::kFfnGateExps : keys::kFfnUpExps, std::move(output));
    }
    return true;
  }

  void stack_experts() {
    for (const auto& [place, group] : experts_) {
      const auto missing = std::find(group.begin(), group.end(), nullptr);
      if (missing != group.end()) {
        refuse("{}: block {}: expert {} has no {}", model_.config.where(), place.first, missing - group.begin(),
               place.second);
      }
      for (const HfTensor* tensor : group) {
        check_source(*tensor);
        expect_shape(*tensor, group.front()->shape);
      }
      const int64_t n_rows = group.front()->n_rows();
      HfOutput output = as_is(*group.front());
      output.shape.insert(output.shape.begin(), model_.n_expert);
      output.row = [group = group, n_rows](int64_t row) {
        return RowOrigin{group[static_cast<size_t>(row / n_rows)], row % n_rows};
      };
      add(place.first, place.second, std::move(output));
    }
  }

  const Checkpoint& checkpoint_;
  const HfModel& model_;
  int64_t n_mtp_ = 0;
  std::map<std::pair<int64_t, std::string>, HfOutput> outputs_;                      // by block, name
  std::map<std::pair<int64_t, const char*>, std::vector<const HfTensor*>> experts_;  // by block, name of the stack
};

float changed(ValueChange change, float value) {
  switch (change) {
    case ValueChange::plus_one:
      return value + 1;
    case ValueChange::minus_exp:
      return -std::exp(value);
    case ValueChange::none:
      break;
  }
  return value;
}

}  // namespace

void HfOutput::read_rows(int64_t begin, int64_t end, float* out) const {
  const int64_t n = n_cols();
  if (!values.empty()) {
    std::copy(values.begin() + begin * n, values.begin() + end * n, out);
    return;
  }
  std::vector<float> source(static_cast<size_t>(columns.empty() ? 0 : n));
  for (int64_t r = begin; r < end; ++r, out += n) {
    const RowOrigin origin = row(r);
    const int64_t bytes = row_bytes(*origin.tensor->type, n);
    float* decoded = columns.empty() ? out : source.data();
    decode_row(*origin.tensor->type, origin.tensor->data.data() + origin.row * bytes, decoded, n);
    if (!columns.empty()) {
      for (int64_t c = 0; c < n; ++c) out[c] = source[static_cast<size_t>(columns[static_cast<size_t>(c)])];
    }
    if (change != ValueChange::none) std::transform(out, out + n, out, [&](float v) { return changed(change, v); });
  }
}

HfOutputs plan_hf_tensors(const Checkpoint& checkpoint, const HfModel& model) {
  return Planner(checkpoint, model).plan();
}

}  // namespace onebit
