#include "model/linear.h"

#include <algorithm>

#include "base/error.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

bool ends_with_role(std::string_view name, std::string_view role) {
  return name.size() > role.size() && name.ends_with(role) && name[name.size() - role.size() - 1] == '.';
}

/// These feed an exponential (the decay of the recurrence), so they keep exact activations.
bool needs_exact(std::string_view name) {
  return ends_with_role(name, keys::kSsmAlpha) || ends_with_role(name, keys::kSsmBeta) ||
         ends_with_role(name, keys::kSsmBa);
}

}  // namespace

W4a4 parse_w4a4(std::string_view text) {
  if (text == "auto") return W4a4::automatic;
  if (text == "all") return W4a4::all;
  if (text == "none") return W4a4::none;
  fail(ErrorKind::usage, "--w4a4: expected auto, all or none, found {}", text);
}

W4a4Policy::W4a4Policy(const GgufFile& file, W4a4 mode) : mode_(mode), has_list_(file.has(keys::kW4a4Tensors)) {
  if (has_list_) listed_ = file.require<std::vector<std::string>>(keys::kW4a4Tensors);
}

bool W4a4Policy::prompt_int4(const Weight& weight) const {
  if (mode_ == W4a4::none || weight.type != BlockType::q4_0 || weight.shape.size() < 2) return false;
  if (!weight.name.starts_with("blk.") || needs_exact(weight.name)) return false;
  if (mode_ == W4a4::all) return true;
  if (has_list_) return std::find(listed_.begin(), listed_.end(), weight.name) != listed_.end();
  return weight.rotated;
}

Value linear(Plan& plan, Value x, const Weight& w) {
  if (!type_info(w.type).quantised) return plan.matmul(x, w);
  return plan.matmul(plan.quantize(x, w.rotated, w.prompt_int4), w);
}

Value linear_experts(Plan& plan, Value x, const Weight& w, Value ids) {
  if (!type_info(w.type).quantised) return plan.matmul_experts(x, w, ids);
  return plan.matmul_experts(plan.quantize(x, w.rotated, w.prompt_int4), w, ids);
}

std::string_view path_of(const Weight& weight) {
  if (!type_info(weight.type).quantised) return "f32";
  return weight.prompt_int4 ? "w4a4" : "int8";
}

}  // namespace onebit
