// What a checkpoint's config.json says, as numbers that converting needs. In: config.json. Out: HfModel.
#pragma once

#include <cstdint>
#include <string>

#include "convert/hf_rope.h"
#include "convert/json_file.h"

namespace onebit {

struct HfModel {
  JsonObject config;         ///< text_config, where there is one, laid over the top level
  std::string architecture;  ///< of the GGUF file: "qwen3", "dflash" ...
  int64_t n_layer = 0;       ///< trunk blocks
  int64_t n_embd = 0, n_head = 0, n_head_kv = 0, d_head = 0;
  HfRope rope = {};
  int64_t n_expert = 0;                                  ///< 0: dense
  int64_t n_k_head = 0, n_v_head = 0, d_k = 0, d_v = 0;  ///< gated delta net; 0 elsewhere

  bool drafter() const { return architecture == "dflash"; }
  bool hybrid() const { return n_k_head > 0; }
  bool moe() const { return n_expert > 0; }
};

/// Throws Error(refused) for a model that can't be converted, naming the field and what was found.
HfModel read_hf_model(const std::string& folder);

}  // namespace onebit
