#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

std::vector<int64_t> without_outer_ones(std::vector<int64_t> shape) {
  while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

/// Tables whose rows are looked up and that no step multiplies with.
bool only_looked_up(const GgufFile& file, const std::string& name) {
  if (name == keys::kTokenEmbd) return file.find(keys::kOutput) != nullptr;  // else it is the head as well
  return name == keys::kSelectorPredecessor || name == keys::kSelectorSuccessor;
}

}  // namespace

Weights::Weights(const GgufFile& file, const W4a4Choice& choice)
    : file_(file), policy_(file, choice), stamp_(hadamard_stamp(file)) {
  check_hadamard_tensors(file);
}

const Weight& Weights::get(const std::string& name, const std::vector<int64_t>& shape) {
  if (const Weight* weight = find(name, shape)) return *weight;
  refuse("{}: {}: expected a tensor [{}], found none", file_.path(), name, fmt::join(shape, ", "));
}

const Weight* Weights::find(const std::string& name, const std::vector<int64_t>& shape) {
  if (const auto known = index_.find(name); known != index_.end()) return known->second;
  const TensorInfo* tensor = file_.find(name);
  if (!tensor) return nullptr;
  if (without_outer_ones(tensor->shape) != without_outer_ones(shape)) {
    refuse("{}: {}: expected [{}], found {} {}", file_.path(), name, fmt::join(shape, ", "), shape_text(tensor->shape),
           type_name(tensor->type));
  }
  if (!type_info(tensor->type).decodable) {
    refuse("{}: {}: type {} can't be computed with; quantise the model to another type", file_.path(), name,
           type_name(tensor->type));
  }
  Weight& weight = weights_.emplace_back();
  weight.name = name;
  weight.type = tensor->type;
  weight.shape = shape;
  weight.data = tensor->data;
  weight.rotated = is_rotated(*tensor, stamp_);
  weight.prompt_int4 = policy_.prompt_int4(weight);
  weight.int4_rule = policy_.rule();
  weight.gather_only = only_looked_up(file_, name);
  index_.emplace(name, &weight);
  return &weight;
}

void Weights::set_int4(const std::set<std::string>& names) {
  for (Weight& weight : weights_) weight.prompt_int4 = may_take_int4(weight) && names.count(weight.name) != 0;
}

bool Weights::owns(const Weight* weight) const {
  return std::any_of(weights_.begin(), weights_.end(), [&](const Weight& w) { return &w == weight; });
}

}  // namespace onebit
