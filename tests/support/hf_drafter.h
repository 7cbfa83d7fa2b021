// The checkpoint of a small drafter, in Hugging Face's layout.
#pragma once

#include "support/hf_folder.h"

namespace onebit::test {

struct HfDrafter {
  nlohmann::json config;
  std::map<std::string, HfArray> arrays;
};

/// Version 2: dynamic convolutions and a candidate selector.
inline HfDrafter hf_drafter() {
  HfDrafter made;
  made.config = {{"architectures", {"DFlash2DraftModel"}},
                 {"model_type", "qwen3"},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"head_dim", 32},
                 {"rms_norm_eps", 1e-6},
                 {"max_position_embeddings", 256},
                 {"rope_theta", 1e7},
                 {"is_causal", false},
                 {"vocab_size", 40},
                 {"use_sliding_window", true},
                 {"sliding_window", 16},
                 {"layer_types", {"sliding_attention", "full_attention"}},
                 {"block_size", 4},
                 {"dflash_config",
                  {{"target_layer_ids", {1, 5}},
                   {"mask_token_id", 39},
                   {"block_size", 8},
                   {"conv_kernel_size", 2},
                   {"conv_group_size", 16},
                   {"selector_rank", 32},
                   {"selector_top_k", 4},
                   {"output_multiplier", 0.5}}}};
  int seed = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    made.arrays[name] = counting_array(shape, seed += 13);
  };
  add("fc.weight", {64, 128});
  add("hidden_norm.weight", {64});
  add("norm.weight", {64});
  add("candidate_selector.predecessor_codebook", {40, 32});
  add("candidate_selector.successor_codebook", {40, 32});
  add("candidate_selector.hidden_projection.weight", {32, 64});
  for (const char* layer : {"layers.0.", "layers.1."}) {
    const std::string p = layer;
    add(p + "input_layernorm.weight", {64});
    add(p + "post_attention_layernorm.weight", {64});
    add(p + "self_attn.q_proj.weight", {64, 64});
    add(p + "self_attn.k_proj.weight", {32, 64});
    add(p + "self_attn.v_proj.weight", {32, 64});
    add(p + "self_attn.o_proj.weight", {64, 64});
    add(p + "self_attn.q_norm.weight", {32});
    add(p + "self_attn.k_norm.weight", {32});
    add(p + "mlp.gate_proj.weight", {96, 64});
    add(p + "mlp.up_proj.weight", {96, 64});
    add(p + "mlp.down_proj.weight", {64, 96});
    add(p + "attention_conv.base_kernel", {2, 2, 64});
    add(p + "attention_conv.kernel_projection.weight", {16, 64});
    add(p + "mlp_conv.base_kernel", {2, 2, 64});
    add(p + "mlp_conv.kernel_projection.weight", {16, 64});
  }
  return made;
}

/// The same drafter as version 1 has it.
inline HfDrafter hf_drafter_v1() {
  HfDrafter made = hf_drafter();
  made.config["architectures"] = {"DFlashDraftModel"};
  made.config["dflash_config"] = {{"target_layer_ids", {1, 5}}, {"mask_token_id", 39}};
  std::erase_if(made.arrays, [](const auto& item) {
    return item.first.find("selector") != std::string::npos || item.first.find("conv") != std::string::npos;
  });
  return made;
}

}  // namespace onebit::test
