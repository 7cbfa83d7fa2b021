// From config.json's fields to metadata keys, group by group.
#include "convert/hf_keys.h"

#include <cmath>

#include "base/error.h"
#include "convert/file_type.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

void write_sizes(const HfModel& model, int64_t n_mtp, GgufWriter& writer) {
  const std::string& arch = model.architecture;
  const JsonObject& config = model.config;
  writer.add(keys::block_count(arch), u32(model.n_layer + n_mtp));
  writer.add(keys::context_length(arch), u32(config.count("max_position_embeddings")));
  writer.add(keys::embedding_length(arch), u32(model.n_embd));
  if (config.has("intermediate_size"))
    writer.add(keys::feed_forward_length(arch), u32(config.count("intermediate_size")));
  if (config.has("vocab_size")) writer.add(keys::vocab_size(arch), u32(config.count("vocab_size")));
  if (n_mtp > 0) writer.add(keys::nextn_predict_layers(arch), u32(n_mtp));
  writer.add(keys::head_count(arch), u32(model.n_head));
  writer.add(keys::head_count_kv(arch), u32(model.n_head_kv));
  writer.add(keys::key_length(arch), u32(model.d_head));
  writer.add(keys::value_length(arch), u32(model.d_head));
  const auto eps = config.number("rms_norm_eps");
  if (!eps) refuse("{}: field rms_norm_eps is missing", config.where());
  writer.add(keys::rms_epsilon(arch), static_cast<float>(*eps));
}

void write_yarn(const std::string& arch, const HfRope& rope, GgufWriter& writer) {
  if (rope.n_ctx_orig > 0) writer.add(keys::rope_original_context(arch), u32(rope.n_ctx_orig));
  if (rope.beta_fast) writer.add(keys::yarn_beta_fast(arch), static_cast<float>(*rope.beta_fast));
  if (rope.beta_slow) writer.add(keys::yarn_beta_slow(arch), static_cast<float>(*rope.beta_slow));
  // The key is relative to the usual factor, which readers apply by themselves.
  const double usual = 1 + 0.1 * std::log(rope.factor);
  if (rope.attention_factor && std::fabs(*rope.attention_factor / usual - 1) > 1e-6) {
    writer.add(keys::rope_attn_factor(arch), static_cast<float>(*rope.attention_factor / usual));
  }
}

void write_rope(const HfModel& model, GgufWriter& writer) {
  const std::string& arch = model.architecture;
  const HfRope& rope = model.rope;
  writer.add(keys::rope_freq_base(arch), static_cast<float>(rope.theta));
  const double share = model.hybrid() ? rope.rotary_share : 1;
  writer.add(keys::rope_dimension_count(arch), u32(static_cast<int64_t>(static_cast<double>(model.d_head) * share)));
  if (arch == "qwen35" || arch == "qwen35moe") {
    std::vector<int32_t> sections(rope.sections.begin(), rope.sections.end());
    if (sections.empty()) sections = {11, 11, 10, 0};
    sections.resize(4, 0);
    writer.add(keys::rope_dimension_sections(arch), sections);
  }
  if (rope.type != "linear" && rope.type != "yarn") return;  // llama3 scaling is a tensor
  writer.add(keys::rope_scaling_type(arch), rope.type);
  writer.add(keys::rope_scaling_factor(arch), static_cast<float>(rope.factor));
  if (rope.type == "yarn") write_yarn(arch, rope, writer);
}

void write_experts(const HfModel& model, GgufWriter& writer) {
  if (!model.moe()) return;
  const std::string& arch = model.architecture;
  writer.add(keys::expert_count(arch), u32(model.n_expert));
  writer.add(keys::expert_used_count(arch), u32(model.config.count("num_experts_per_tok")));
  writer.add(keys::expert_feed_forward_length(arch), u32(model.config.count("moe_intermediate_size")));
  if (model.hybrid()) {
    const int64_t shared = model.config.count("shared_expert_intermediate_size");
    writer.add(keys::expert_shared_feed_forward_length(arch), u32(shared));
  }
}

void write_delta_net(const HfModel& model, int64_t n_mtp, GgufWriter& writer) {
  if (!model.hybrid()) return;
  const std::string& arch = model.architecture;
  writer.add(keys::ssm_conv_kernel(arch), u32(model.config.count("linear_conv_kernel_dim")));
  writer.add(keys::ssm_state_size(arch), u32(model.d_k));
  writer.add(keys::ssm_group_count(arch), u32(model.n_k_head));
  writer.add(keys::ssm_time_step_rank(arch), u32(model.n_v_head));
  writer.add(keys::ssm_inner_size(arch), u32(model.n_v_head * model.d_v));
  const int64_t interval = model.config.count_or("full_attention_interval", 4);
  writer.add(keys::full_attention_interval(arch), u32(interval));
  const auto types = model.config.texts("layer_types");
  if (!types) return;
  // An order of layers that the interval doesn't describe is written out; MTP blocks are full attention.
  std::vector<bool> recurrent;
  bool regular = true;
  for (size_t i = 0; i < types->size(); ++i) {
    recurrent.push_back(types->at(i) == "linear_attention");
    regular = regular && recurrent[i] == ((static_cast<int64_t>(i) + 1) % interval != 0);
  }
  recurrent.resize(static_cast<size_t>(model.n_layer + n_mtp), false);
  if (!regular) writer.add(keys::recurrent_layers(arch), recurrent);
}

/// Drafter fields lie in dflash_config, or at the top level of older configs.
JsonObject drafter_fields(const HfModel& model) {
  const auto nested = model.config.object("dflash_config");
  return nested ? model.config.overlaid(*nested) : model.config;
}

void write_window(const HfModel& model, const JsonObject& fields, GgufWriter& writer) {
  const auto types = fields.texts("layer_types");
  if (!fields.flag("use_sliding_window").value_or(false) || !fields.has("sliding_window") || !types) return;
  std::vector<bool> slides;
  for (const std::string& type : *types) slides.push_back(type == "sliding_attention");
  if (static_cast<int64_t>(slides.size()) != model.n_layer) {
    refuse("{}: field layer_types: expected {} entries, found {}", fields.where(), model.n_layer, slides.size());
  }
  writer.add(keys::sliding_window(model.architecture), u32(fields.count("sliding_window")));
  writer.add(keys::sliding_window_pattern(model.architecture), slides);
}

void write_drafter(const HfModel& model, GgufWriter& writer) {
  if (!model.drafter()) return;
  const JsonObject fields = drafter_fields(model);
  const auto taps = fields.integers("target_layer_ids");
  if (!taps || taps->empty()) refuse("{}: field target_layer_ids is missing", fields.where());
  std::vector<int32_t> from_one;
  for (const int64_t tap : *taps) {
    if (tap < 0 || tap > 100000) refuse("{}: field target_layer_ids: {} is no block", fields.where(), tap);
    from_one.push_back(static_cast<int32_t>(tap + 1));
  }
  writer.add(keys::kDflashTargetLayers, from_one);
  writer.add(keys::kDflashBlockSize, u32(fields.count_or("block_size", 16)));
  const std::pair<const char*, const char*> counts[] = {{"conv_kernel_size", keys::kDflashConvKernelSize},
                                                        {"conv_group_size", keys::kDflashConvGroupSize},
                                                        {"selector_rank", keys::kDflashSelectorRank},
                                                        {"selector_top_k", keys::kDflashSelectorTopK},
                                                        {"target_hidden_size", keys::kDflashTargetHiddenSize}};
  for (const auto& [field, key] : counts) {
    if (fields.has(field)) writer.add(key, u32(fields.count(field)));
  }
  const std::pair<const char*, const char*> numbers[] = {{"output_multiplier", keys::kDflashLogitScale},
                                                         {"input_embedding_scale", keys::kDflashEmbeddingScale}};
  for (const auto& [field, key] : numbers) {
    if (const auto value = fields.number(field)) writer.add(key, static_cast<float>(*value));
  }
  const auto softcap = fields.number("final_logit_softcapping");
  if (softcap && *softcap > 0) writer.add(keys::kDflashFinalLogitSoftcapping, static_cast<float>(*softcap));
  const auto causal = fields.has("causal") ? fields.flag("causal") : fields.flag("is_causal");
  if (causal) writer.add(keys::attention_causal(model.architecture), *causal);
  write_window(model, fields, writer);
  const auto mask = fields.integer("mask_token_id");
  if (!mask || *mask < 0 || *mask > INT32_MAX) refuse("{}: field mask_token_id: expected an id", fields.where());
  writer.add(keys::kTokenizerMask, u32(*mask));
}

}  // namespace

void write_hf_keys(const HfModel& model, int64_t n_mtp, BlockType type, const std::string& name, GgufWriter& writer) {
  writer.add(keys::kArchitecture, model.architecture);
  writer.add(keys::kType, "model");
  writer.add(keys::kName, name);
  writer.add(keys::kFileType, file_type_id(type));
  writer.add(keys::kQuantizationVersion, kQuantizationVersionValue);
  write_sizes(model, n_mtp, writer);
  write_rope(model, writer);
  write_experts(model, writer);
  write_delta_net(model, n_mtp, writer);
  write_drafter(model, writer);
}

}  // namespace onebit
