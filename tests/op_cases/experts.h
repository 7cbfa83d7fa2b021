// Cases of route, matmul_experts and combine_experts.
#pragma once

#include <algorithm>

namespace onebit::test {

/// Logits on a coarse grid: every row has ties.
inline std::vector<float> tied_logits(Rng& rng, int64_t n) {
  std::vector<float> logits = random_values(rng, n, 2);
  for (float& x : logits) x = std::round(x * 2) / 2;
  return logits;
}

inline std::unique_ptr<OpRig> route_rig(int32_t n_tok, int64_t n_expert, const RouteParams& params) {
  auto rig = std::make_unique<OpRig>("route", n_tok);
  const Value logits = rig->feed(n_expert, tied_logits(rig->random(), rig->n_token() * n_expert));
  const auto [ids, weights] = rig->plan.route(logits, params);
  rig->check("ids", ids);
  rig->check("weights", weights, {Tolerance::reduction, static_cast<double>(n_expert), {}});
  rig->finish();
  rig->batches = {prompt_batch(n_tok), prompt_batch(1, Phase::decode)};
  return rig;
}

/// As matmul_bound with the largest of the experts' norms; the product has `per_input` rows for each row of x.
inline Bound experts_bound(const std::vector<float>& x, const Weight& w, int64_t per_input) {
  const bool quantised = type_info(w.type).quantised;
  const std::vector<double> w_norms = row_norms(decoded(w), w.n_in());
  auto magnitude = [x_norms = row_norms(x, w.n_in()), w_norm = *std::max_element(w_norms.begin(), w_norms.end()),
                    per_input](int64_t row, int64_t) {
    return 1.2 * x_norms[static_cast<size_t>(row / per_input)] * w_norm;
  };
  const double terms = static_cast<double>(quantised ? w.n_in() / 16 : w.n_in());
  return {quantised ? Tolerance::integer : Tolerance::reduction, terms, magnitude};
}

/// Experts that copy: row n of expert e is one at column (n + e) mod n_in, so products are exact in any order.
inline const Weight& copying_experts(OpRig& rig, int64_t n_expert, int64_t n_in) {
  std::vector<float> values(static_cast<size_t>(n_expert * n_in * n_in));
  for (int64_t e = 0; e < n_expert; ++e) {
    for (int64_t n = 0; n < n_in; ++n) values[static_cast<size_t>((e * n_in + n) * n_in + (n + e) % n_in)] = 1;
  }
  return rig.floats({n_expert, n_in, n_in}, values);
}

/// Both forms of matmul_experts: one input row per token, and one per token and expert.
inline std::unique_ptr<OpRig> experts_rig(BlockType type, int32_t n_tok, int64_t n_expert, int32_t n_used,
                                          int64_t n_out, bool rotated_int4) {
  auto rig = std::make_unique<OpRig>("experts", n_tok);
  const int64_t n_in = std::max<int64_t>(type_info(type).block_elems, 64);
  TestWeight& made = rig->new_weight();
  set_random(made, rig->random(), "w", type, {n_expert, n_out, n_in});
  made.weight.rotated = made.weight.prompt_int4 = rotated_int4;
  const auto [ids, weights] = rig->plan.route(rig->feed(n_expert), {.n_used = n_used});
  const std::vector<float> rows = matmul_rows(rig->random(), rig->n_token(), n_in);
  const Value x = rig->feed(n_in, rows);
  const Value each = rig->plan.matmul_experts(x, copying_experts(*rig, n_expert, n_in), ids);
  auto ready = [&](Value v) {
    return type_info(type).quantised ? rig->plan.quantize(v, {rotated_int4, rotated_int4}) : v;
  };
  rig->check("ids", ids);
  rig->check("one row per token", rig->plan.matmul_experts(ready(x), made.weight, ids),
             experts_bound(rows, made.weight, n_used));
  rig->check("one row per expert", rig->plan.matmul_experts(ready(each), made.weight, ids),
             experts_bound(rows, made.weight, n_used));
  rig->check("combined", rig->plan.combine_experts(each, weights),
             {Tolerance::reduction, static_cast<double>(n_expert), {}});
  rig->finish();
  rig->batches = mixed_phase_batches(n_tok);
  return rig;
}

inline void add_experts_cases(OpCases& cases) {
  cases.push_back({"route_one", [] { return route_rig(3, 1, {.n_used = 1}); }});
  cases.push_back({"route_all", [] { return route_rig(2, 7, {.n_used = 7}); }});
  cases.push_back({"route_softmax", [] { return route_rig(17, 33, {.n_used = 4}); }});
  cases.push_back(
      {"route_softmax_scaled", [] { return route_rig(3, 64, {.n_used = 6, .normalise = false, .scale = 2.5f}); }});
  cases.push_back({"route_sigmoid", [] { return route_rig(9, 65, {.n_used = 8, .gate = RouterGate::sigmoid}); }});
  cases.push_back({"route_real", [] { return route_rig(5, 256, {.n_used = 8}); }});
  for (const BlockType type : decodable_types()) {
    cases.push_back(
        {fmt::format("experts_{}", type_name(type)), [=] { return experts_rig(type, 9, 5, 2, 17, false); }});
  }
  cases.push_back({"experts_q4_0_rotated_int4", [] { return experts_rig(BlockType::q4_0, 33, 8, 3, 48, true); }});
  cases.push_back({"experts_q4_0_one_token", [] { return experts_rig(BlockType::q4_0, 1, 6, 4, 33, true); }});
  cases.push_back({"experts_q8_0_one_expert", [] { return experts_rig(BlockType::q8_0, 3, 1, 1, 16, false); }});
}

}  // namespace onebit::test
