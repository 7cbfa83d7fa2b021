#include "measure/block_plan.h"

#include <algorithm>

#include "base/error.h"
#include "convert/tensor_encoder.h"

namespace onebit {
namespace {

/// First step of each block, and the step behind the last one (where rows for the head are gathered).
std::vector<size_t> block_bounds(const Plan& plan) {
  std::vector<size_t> bounds;
  for (size_t s = 0; s < plan.steps().size(); ++s) {
    const Step& step = plan.steps()[s];
    if (step.op == Op::gather_rows) {
      bounds.push_back(s);
      break;
    }
    for (const Weight* weight : step.weights) {
      if (block_of(weight->name) == static_cast<int64_t>(bounds.size())) bounds.push_back(s);
    }
  }
  CHECK(bounds.size() >= 2);
  return bounds;
}

bool is_product(Op op) { return op == Op::matmul || op == Op::matmul_experts; }

}  // namespace

BlockPlan::BlockPlan(Model& model) : plan_(model.plan(nullptr)), bounds_(block_bounds(plan_)) {}

std::vector<InputGroup> BlockPlan::groups(int64_t i) const {
  std::vector<InputGroup> groups;
  std::vector<Value> source(plan_.values().size());  // of quantised values
  for (size_t s = 0; s < begin(i + 1); ++s) {
    const Step& step = plan_.steps()[s];
    if (step.op == Op::quantize) source[static_cast<size_t>(step.out[0].id)] = step.in[0];
    if (!is_product(step.op) || s < begin(i)) continue;
    const Value read = step.in[0], from = source[static_cast<size_t>(read.id)], x = from.id >= 0 ? from : read;
    const bool experts = step.op == Op::matmul_experts;
    const auto same = [&](const InputGroup& g) { return g.x.id == x.id && (g.n_used > 0) == experts; };
    auto known = std::find_if(groups.begin(), groups.end(), same);
    if (known == groups.end()) {
      known = groups.insert(groups.end(), {x, {}, {-1}, 0, plan_.info(x).width});
      if (experts) known->ids = step.in[1];
      if (experts) known->n_used = plan_.info(step.in[1]).width;
    }
    known->matrices.push_back(step.weights[0]);
  }
  return groups;
}

}  // namespace onebit
