// Recognising a checkpoint and refusing the variants that the engine has no formula for.
#include "convert/hf_model.h"

#include <algorithm>

#include "base/error.h"
#include "gguf/file.h"

namespace onebit {
namespace {

struct ModelType {
  const char* hf;
  const char* gguf;
  bool moe, hybrid;
};

constexpr ModelType kModelTypes[] = {
    {"qwen3", "qwen3", false, false},
    {"qwen3_moe", "qwen3moe", true, false},
    {"qwen3_next", "qwen3next", true, true},
    {"qwen3_5", "qwen35", false, true},
    {"qwen3_5_text", "qwen35", false, true},
    {"qwen3_5_moe", "qwen35moe", true, true},
    {"qwen3_5_moe_text", "qwen35moe", true, true},
    {"llama", "llama", false, false},
};

/// Drafters carry the model_type of an ordinary model; their class tells them apart.
constexpr ModelType kDrafter = {"dflash", "dflash", false, false};

const ModelType& find_model_type(const JsonObject& config) {
  for (const std::string& name : config.texts("architectures").value_or(std::vector<std::string>{})) {
    if (name.starts_with("DFlash")) return kDrafter;
  }
  const std::string type = config.text("model_type").value_or("");
  for (const ModelType& known : kModelTypes) {
    if (type == known.hf) return known;
  }
  refuse(
      "{}: field model_type: expected one of qwen3, qwen3_moe, qwen3_next, qwen3_5, qwen3_5_moe, llama, or a DFlash "
      "drafter, found {}",
      config.where(), printable(type));
}

void refuse_flag(const JsonObject& config, const char* name, bool unsupported) {
  if (config.flag(name).value_or(!unsupported) == unsupported) {
    refuse("{}: field {}: {} is not supported", config.where(), name, unsupported);
  }
}

void check_supported(const JsonObject& config, const ModelType& type) {
  const std::string activation = config.text("hidden_act").value_or("silu");
  if (activation != "silu")
    refuse("{}: field hidden_act: expected silu, found {}", config.where(), printable(activation));
  if (config.has("quantization_config")) {
    refuse("{}: the checkpoint is quantised (quantization_config); expected one in bf16, f16 or f32", config.where());
  }
  if (&type != &kDrafter) refuse_flag(config, "use_sliding_window", true);
  if (type.moe) {
    refuse_flag(config, "norm_topk_prob", false);
    if (config.integer("decoder_sparse_step").value_or(1) != 1 ||
        !config.integers("mlp_only_layers").value_or(std::vector<int64_t>{}).empty()) {
      refuse("{}: dense blocks among mixture blocks are not supported", config.where());
    }
  }
}

void read_delta_net(HfModel& model) {
  const JsonObject& config = model.config;
  model.n_k_head = config.count("linear_num_key_heads");
  model.n_v_head = config.count("linear_num_value_heads");
  model.d_k = config.count("linear_key_head_dim");
  model.d_v = config.count("linear_value_head_dim");
  if (model.n_v_head % model.n_k_head != 0 || model.d_k != model.d_v) {
    refuse("{}: expected value heads as a multiple of key heads and of the same size, found {} x {} and {} x {}",
           config.where(), model.n_v_head, model.d_v, model.n_k_head, model.d_k);
  }
}

}  // namespace

HfModel read_hf_model(const std::string& folder) {
  JsonObject config = JsonObject::read(folder + "/config.json");
  if (const auto text = config.object("text_config")) config = config.overlaid(*text);
  const ModelType& type = find_model_type(config);
  check_supported(config, type);
  HfModel model{config, type.gguf};
  model.rope = read_hf_rope(config);
  model.n_layer = config.count("num_hidden_layers");
  model.n_embd = config.count("hidden_size");
  model.n_head = config.count("num_attention_heads");
  model.n_head_kv = config.count_or("num_key_value_heads", model.n_head);
  model.d_head = config.count_or("head_dim", model.n_embd / model.n_head);
  if (model.n_head % model.n_head_kv != 0 || model.d_head < 2 || model.d_head % 2 != 0) {
    refuse("{}: {} heads, {} key heads and a head size of {} don't go together", config.where(), model.n_head,
           model.n_head_kv, model.d_head);
  }
  if (type.moe)
    model.n_expert = config.has("num_experts") ? config.count("num_experts") : config.count("num_local_experts");
  if (type.hybrid) read_delta_net(model);
  return model;
}

}  // namespace onebit
