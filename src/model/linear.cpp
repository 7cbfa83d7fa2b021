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

Int4Rule parse_int4_rule(std::string_view text) {
  if (text == "amax") return Int4Rule::amax;
  if (text == "extreme") return Int4Rule::extreme;
  if (text == "search") return Int4Rule::search;
  fail(ErrorKind::usage, "--int4-rule: expected amax, extreme or search, found {}", text);
}

bool may_take_int4(const Weight& weight) {
  return weight.type == BlockType::q4_0 && weight.shape.size() > 1 && weight.name.starts_with("blk.") &&
         !needs_exact(weight.name);
}

W4a4Policy::W4a4Policy(const GgufFile& file, const W4a4Choice& choice)
    : choice_(choice), has_list_(file.has(keys::kW4a4Tensors)) {
  if (has_list_) listed_ = file.require<std::vector<std::string>>(keys::kW4a4Tensors);
}

bool W4a4Policy::prompt_int4(const Weight& weight) const {
  if (choice_.mode == W4a4::none || !may_take_int4(weight)) return false;
  if (choice_.mode == W4a4::all) return true;
  if (has_list_) return std::find(listed_.begin(), listed_.end(), weight.name) != listed_.end();
  return weight.rotated;
}

Value linear(Plan& plan, Value x, const Weight& w) {
  if (!type_info(w.type).quantised) return plan.matmul(x, w);
  return plan.matmul(plan.quantize(x, w.input()), w);
}

Value linear_experts(Plan& plan, Value x, const Weight& w, Value ids) {
  if (!type_info(w.type).quantised) return plan.matmul_experts(x, w, ids);
  return plan.matmul_experts(plan.quantize(x, w.input()), w, ids);
}

std::string_view path_of(const Weight& weight) {
  if (!type_info(weight.type).quantised) return "f32";
  return weight.prompt_int4 ? "w4a4" : "int8";
}

}  // namespace onebit
