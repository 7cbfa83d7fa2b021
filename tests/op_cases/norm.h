// Cases of rms_norm and gated_norm.
#pragma once

namespace onebit::test {

inline std::unique_ptr<OpRig> norm_rig(int32_t n_tok, int64_t n_group, int64_t group, bool gated) {
  auto rig = std::make_unique<OpRig>("norm", n_tok);
  const Weight& w = rig->random_floats({group});
  const Value x = rig->feed(n_group * group, 3);
  const Value y =
      gated ? rig->plan.gated_norm(x, w, rig->feed(n_group * group), 1e-6f) : rig->plan.rms_norm(x, w, 1e-6f);
  rig->check("y", y, {Tolerance::reduction, static_cast<double>(group), {}});
  rig->finish();
  rig->batches = {prompt_batch(n_tok), prompt_batch(1, Phase::decode)};
  return rig;
}

inline void add_norm_cases(OpCases& cases) {
  struct Size {
    int32_t n_tok;
    int64_t n_group, group;
  };
  for (const Size size :
       {Size{1, 1, 1}, Size{3, 1, 7}, Size{2, 1, 33}, Size{17, 5, 65}, Size{4, 16, 128}, Size{5, 1, 2560}}) {
    for (const bool gated : {false, true}) {
      cases.push_back(
          {fmt::format("{}_{}x{}x{}", gated ? "gated_norm" : "rms_norm", size.n_tok, size.n_group, size.group),
           [=] { return norm_rig(size.n_tok, size.n_group, size.group, gated); }});
    }
  }
}

}  // namespace onebit::test
