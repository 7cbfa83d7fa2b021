// Cases of rope: both pairings, partial rotation, scaling rules, far positions, rows of several sequences.
#pragma once

namespace onebit::test {

inline std::unique_ptr<OpRig> rope_rig(const RopeParams& params, bool factors, bool survives) {
  auto rig = std::make_unique<OpRig>("rope", 9);
  const Value x = rig->feed(params.n_head * params.d_head);
  if (survives) rig->check("x", x);
  const Weight* divisors = nullptr;
  if (factors) {
    std::vector<float> values(static_cast<size_t>(params.n_rot / 2));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<float>(i) * 0.75f;
    divisors = &rig->floats({params.n_rot / 2}, values);
  }
  rig->check("y", rig->plan.rope(x, params, divisors), {.tolerance = Tolerance::rounding});
  rig->check("outputs",
             rig->plan.rope(rig->plan.gather_rows(rig->feed(params.n_head * params.d_head)), params, divisors),
             {.tolerance = Tolerance::rounding});
  rig->finish();
  TestBatch mixed = prompt_batch(9);
  mixed.sequences = {{.n_tok = 4, .pos = 0}, {.n_tok = 3, .pos = 1000}, {.n_tok = 2, .pos = 131070}};
  mixed.outputs = {0, 3, 5, 8};
  TestBatch single = prompt_batch(1, Phase::decode);
  single.sequences[0].pos = 77;
  rig->batches = {mixed, single};
  return rig;
}

inline void add_rope_cases(OpCases& cases) {
  const RopeParams neox{.n_head = 3, .d_head = 64, .n_rot = 64, .theta = 1e6f};
  RopeParams partial = neox, normal = neox, linear = neox, yarn = neox, tiny = neox, real = neox;
  partial.n_rot = 16;
  normal.style = RopeStyle::normal;
  linear.linear_factor = 4;
  yarn.yarn_factor = 4;
  yarn.yarn_attn_factor = 1.138629f;
  yarn.n_ctx_orig = 32768;
  tiny = {.n_head = 1, .d_head = 2, .n_rot = 2};
  real = {.n_head = 16, .d_head = 256, .n_rot = 64, .theta = 1e7f};
  const std::pair<const char*, RopeParams> variants[] = {{"neox", neox},     {"partial", partial}, {"normal", normal},
                                                         {"linear", linear}, {"yarn", yarn},       {"tiny", tiny},
                                                         {"real", real}};
  for (const auto& [name, params] : variants) {
    for (const bool survives : {false, true}) {
      cases.push_back({fmt::format("rope_{}{}", name, survives ? "_survives" : ""),
                       [params = params, survives] { return rope_rig(params, false, survives); }});
    }
    cases.push_back(
        {fmt::format("rope_{}_factors", name), [params = params] { return rope_rig(params, true, false); }});
  }
}

}  // namespace onebit::test
