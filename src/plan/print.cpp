// A plan as text: the listing of `1bit plan --ops`.
#include <fmt/format.h>

#include "plan/plan.h"

namespace onebit {
namespace {

std::string shape_of(const ValueInfo& info) {
  const char* rows = info.rows == Rows::tokens ? "tok" : "out";
  const char* type = info.type == Dtype::f32 ? "f32" : info.type == Dtype::i32 ? "i32" : "act";
  if (info.multiple == 1) return fmt::format("{}[{}, {}]", type, rows, info.width);
  return fmt::format("{}[{}*{}, {}]", type, rows, info.multiple, info.width);
}

std::string text_of(const Weight& w) {
  return fmt::format("{} {}[{}]{}", w.name, type_name(w.type), fmt::join(w.shape, ", "), w.rotated ? " rotated" : "");
}

const char* int4_text(Int4Rule rule) {
  if (rule == Int4Rule::search) return "int4";
  return rule == Int4Rule::amax ? "int4-amax" : "int4-extreme";
}

struct ParamText {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const NormParams& p) const { return fmt::format("eps={:g} group={}", p.eps, p.group); }
  std::string operator()(const SoftcapParams& p) const { return fmt::format("scale={:g} cap={:g}", p.scale, p.cap); }
  std::string operator()(const SliceParams& p) const {
    return fmt::format("groups={} stride={} offset={} length={}", p.n_group, p.stride, p.offset, p.length);
  }
  std::string operator()(const QuantizeParams& p) const {
    return fmt::format("{}prompt={}", p.rotate ? "rotate " : "", p.prompt_int4 ? int4_text(p.rule) : "int8");
  }
  std::string operator()(const RouteParams& p) const { return fmt::format("used={} scale={:g}", p.n_used, p.scale); }
  std::string operator()(const RopeParams& p) const {
    return fmt::format("{} rot={} theta={:g}", p.style == RopeStyle::neox ? "neox" : "normal", p.n_rot, p.theta);
  }
  std::string operator()(const AttentionParams& p) const {
    return fmt::format("heads={}/{} d={} window={}{}", p.n_head, p.n_head_kv, p.d_head, p.window,
                       p.causal ? "" : " non-causal");
  }
  std::string operator()(const DeltaNetParams& p) const {
    return fmt::format("heads={}/{} d={}x{} {}", p.n_k_head, p.n_v_head, p.d_k, p.d_v,
                       p.map == HeadMap::tiled ? "tiled" : "grouped");
  }
  std::string operator()(const BlockConvParams& p) const {
    return fmt::format("side={} taps={} group={}", p.side, p.n_tap, p.group);
  }
  std::string operator()(const RowsParams& p) const { return fmt::format("offset={}", p.offset); }
  std::string operator()(const TopKParams& p) const { return fmt::format("k={}", p.k); }
  std::string operator()(const SelectParams& p) const { return fmt::format("rank={}", p.rank); }
};

std::string line_of(const Plan& plan, size_t index) {
  const Step& step = plan.steps()[index];
  std::string outs, ins;
  for (Value v : step.out) outs += fmt::format("{}%{} {}", outs.empty() ? "" : ", ", v.id, shape_of(plan.info(v)));
  for (Value v : step.in) ins += fmt::format(" %{}", v.id);
  std::string line = fmt::format("{:4}  {:<28} {}{}", index, outs, op_info(step.op).name, ins);
  for (const Weight* w : step.weights) line += fmt::format(" | {}", text_of(*w));
  if (step.state) line += fmt::format(" @ {}", step.state->name);
  const std::string params = std::visit(ParamText{}, step.params);
  if (!params.empty()) line += fmt::format("  ({})", params);
  return line;
}

}  // namespace

std::string print_plan(const Plan& plan) {
  std::string text = fmt::format("plan {}: {} steps\n", plan.name(), plan.steps().size());
  for (size_t i = 0; i < plan.steps().size(); ++i) text += line_of(plan, i) + "\n";
  for (const PlanOutput& output : plan.outputs()) text += fmt::format("      {} = %{}\n", output.name, output.value.id);
  return text;
}

}  // namespace onebit
