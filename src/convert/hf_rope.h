// Rotary positions as a checkpoint's config.json describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/json_file.h"

namespace onebit {

struct HfRope {
  std::string type;  ///< "default", "linear", "yarn" or "llama3"
  double theta = 10000;
  double rotary_share = 0.25;                        ///< of a head's dimensions that rotate; only hybrids use it
  double factor = 1;                                 ///< of the context; 1 for "default"
  int64_t n_ctx_orig = 0;                            ///< 0: not given
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  std::optional<double> attention_factor, beta_fast, beta_slow;  ///< yarn
  std::vector<int64_t> sections;                                 ///< mrope_section, possibly empty
};

/// Reads rope_parameters (or rope_scaling and rope_theta). Throws Error(refused) for an unknown kind of scaling.
HfRope read_hf_rope(const JsonObject& config);

/// Divisors of the angles of `d_head` / 2 pairs for "llama3" scaling; empty for other kinds.
std::vector<float> llama3_factors(const HfRope& rope, int64_t d_head);

}  // namespace onebit
