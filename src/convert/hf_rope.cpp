// Older configs keep theta at the top level and scaling in rope_scaling, newer ones have both in rope_parameters.
#include "convert/hf_rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "gguf/file.h"

namespace onebit {
namespace {

double positive(const JsonObject& object, const char* name, double fallback) {
  const double value = object.number(name).value_or(fallback);
  if (!(value > 0) || !std::isfinite(value)) {
    refuse("{}: field {}: expected a number above 0, found {}", object.where(), name, value);
  }
  return value;
}

std::string scaling_type(const JsonObject& rope) {
  const std::string type = rope.text("rope_type").value_or(rope.text("type").value_or("default"));
  if (type == "mrope") return "default";  // the sections say the rest
  for (const char* known : {"default", "linear", "yarn", "llama3"}) {
    if (type == known) return type;
  }
  refuse("{}: expected a rope_type of default, linear, yarn or llama3, found {}", rope.where(), printable(type));
}

}  // namespace

HfRope read_hf_rope(const JsonObject& config) {
  const JsonObject none(nlohmann::json::object(), config.where());
  const JsonObject parameters = config.object("rope_parameters").value_or(config.object("rope_scaling").value_or(none));
  HfRope rope;
  rope.type = scaling_type(parameters);
  rope.theta = positive(parameters, "rope_theta", positive(config, "rope_theta", 10000));
  rope.rotary_share = positive(parameters, "partial_rotary_factor", positive(config, "partial_rotary_factor", 0.25));
  rope.sections = parameters.integers("mrope_section").value_or(std::vector<int64_t>{});
  if (rope.type == "default") return rope;
  rope.factor = positive(parameters, "factor", 1);
  rope.n_ctx_orig = parameters.count_or("original_max_position_embeddings", 0);
  rope.low_freq_factor = positive(parameters, "low_freq_factor", 1);
  rope.high_freq_factor = positive(parameters, "high_freq_factor", 4);
  rope.attention_factor = parameters.number("attention_factor");
  rope.beta_fast = parameters.number("beta_fast");
  rope.beta_slow = parameters.number("beta_slow");
  if (rope.type == "llama3" && (rope.n_ctx_orig == 0 || rope.high_freq_factor <= rope.low_freq_factor)) {
    refuse("{}: llama3 scaling needs original_max_position_embeddings and low_freq_factor < high_freq_factor",
           parameters.where());
  }
  return rope;
}

std::vector<float> llama3_factors(const HfRope& rope, int64_t d_head) {
  std::vector<float> factors;
  if (rope.type != "llama3") return factors;
  const auto n_ctx = static_cast<double>(rope.n_ctx_orig);
  for (int64_t i = 0; i < d_head / 2; ++i) {
    // Short waves stay, long ones are stretched by the factor, those between are mixed by their turns in the context.
    const double wavelength =
        2 * std::numbers::pi * std::pow(rope.theta, 2 * static_cast<double>(i) / static_cast<double>(d_head));
    const double turns = n_ctx / wavelength;
    const double kept =
        std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - kept) / rope.factor + kept)));
  }
  return factors;
}

}  // namespace onebit
