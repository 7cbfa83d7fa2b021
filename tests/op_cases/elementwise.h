// Cases of the ops on single elements, and of slice_heads. Each runs twice: once with an input that nobody reads again
// (a backend may write over it) and once with an input that must survive.
#pragma once

namespace onebit::test {

inline Value elementwise_op(OpRig& rig, Op op, Value x, int64_t width) {
  switch (op) {
    case Op::add:
      return rig.plan.add(x, rig.feed(width));
    case Op::sigmoid_mul:
      return rig.plan.sigmoid_mul(x, rig.feed(width, 4));
    case Op::swiglu:
      return rig.plan.swiglu(x, rig.feed(width));
    case Op::sum_devices:  // a device alone; several: split_test.cpp
      return rig.plan.sum_devices(x);
    default:
      return rig.plan.softcap(x, 0.5f, 3);
  }
}

inline std::unique_ptr<OpRig> elementwise_rig(Op op, int32_t n_tok, int64_t width, bool survives) {
  auto rig = std::make_unique<OpRig>("elementwise", n_tok);
  const Value x = rig->feed(width, 4);
  if (survives) rig->check("x", x);
  rig->check("y", elementwise_op(*rig, op, x, width), {.tolerance = Tolerance::rounding});
  rig->finish();
  rig->batches = {prompt_batch(n_tok), prompt_batch(1, Phase::decode)};
  return rig;
}

/// One gate per row, extreme inputs, and a gate of the row's width that overflows exp.
inline std::unique_ptr<OpRig> gate_rig() {
  auto rig = std::make_unique<OpRig>("gate", 5);
  const std::vector<float> gates = {-1000, -100, -20, 0, 3, 90, 1000, 1};
  rig->check("row gate", rig->plan.sigmoid_mul(rig->feed(33), rig->feed(1, gates)), {.tolerance = Tolerance::rounding});
  rig->check("silu", rig->plan.swiglu(rig->feed(1, gates), rig->feed(1)), {.tolerance = Tolerance::rounding});
  rig->check("uncapped", rig->plan.softcap(rig->feed(7), 0.25f, 0), {.tolerance = Tolerance::rounding});
  rig->check("capped", rig->plan.softcap(rig->feed(1, gates), 2, 30), {.tolerance = Tolerance::rounding});
  rig->finish();
  rig->batches = {prompt_batch(5)};
  rig->batches[0].tokens = {0, 1, 5, 6, 3};
  return rig;
}

inline std::unique_ptr<OpRig> slice_rig(int32_t n_tok, const SliceParams& params, int64_t width) {
  auto rig = std::make_unique<OpRig>("slice", n_tok);
  rig->check("y", rig->plan.slice_heads(rig->feed(width), params));
  rig->finish();
  rig->batches = {prompt_batch(n_tok), prompt_batch(1)};
  return rig;
}

inline void add_elementwise_cases(OpCases& cases) {
  struct Size {
    int32_t n_tok;
    int64_t width;
  };
  for (const Op op : {Op::add, Op::sigmoid_mul, Op::swiglu, Op::softcap, Op::sum_devices}) {
    for (const Size size : {Size{1, 1}, Size{3, 7}, Size{2, 33}, Size{17, 65}, Size{3, 3072}}) {
      for (const bool survives : {false, true}) {
        cases.push_back(
            {fmt::format("{}_{}x{}{}", op_info(op).name, size.n_tok, size.width, survives ? "_survives" : ""),
             [=] { return elementwise_rig(op, size.n_tok, size.width, survives); }});
      }
    }
  }
  cases.push_back({"gates_and_extremes", gate_rig});
  cases.push_back({"slice_heads_all", [] { return slice_rig(3, {1, 9, 0, 9}, 9); }});
  cases.push_back({"slice_heads_odd", [] { return slice_rig(5, {3, 7, 2, 3}, 22); }});
  cases.push_back({"slice_heads_gate", [] { return slice_rig(17, {4, 512, 256, 256}, 2048); }});
}

}  // namespace onebit::test
