// Cases of the ops that only drafters use, and of choosing columns: block_conv, argmax, top_k, select_walk.
#pragma once

#include <limits>

namespace onebit::test {

inline std::unique_ptr<OpRig> block_conv_rig(int64_t width, const BlockConvParams& params) {
  auto rig = std::make_unique<OpRig>("block_conv", 13);
  const Weight& base = rig->random_floats({2, params.n_tap, width});
  const Value delta = rig->feed(2 * params.n_tap * (width / params.group));
  rig->check("y", rig->plan.block_conv(rig->feed(width), base, delta, params), {.tolerance = Tolerance::rounding});
  rig->finish();
  TestBatch two = prompt_batch(13, Phase::draft);
  two.sequences = {{.n_tok = 8, .pos = 11, .phase = Phase::draft}, {.n_tok = 5, .pos = 3, .phase = Phase::draft}};
  rig->batches = {two, prompt_batch(1, Phase::draft)};
  return rig;
}

/// Values on a coarse grid with NaN and infinities among them.
inline std::vector<float> awkward_values(Rng& rng, int64_t n) {
  std::vector<float> values = random_values(rng, n);
  for (float& x : values) x = std::round(x * 4) / 4;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < values.size(); i += 13) values[i] = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 5; i < values.size(); i += 17) values[i] = i % 2 ? kInfinity : -kInfinity;
  return values;
}

inline std::unique_ptr<OpRig> choose_rig(int32_t n_tok, int64_t width, int32_t k, bool awkward) {
  auto rig = std::make_unique<OpRig>("choose", n_tok);
  const Value x = awkward ? rig->feed(width, awkward_values(rig->random(), rig->n_token() * width)) : rig->feed(width);
  const auto [ids, values] = rig->plan.top_k(x, k);
  rig->check("argmax", rig->plan.argmax(x));
  rig->check("ids", ids);
  if (!awkward) rig->check("values", values);  // the bits of a NaN are free
  rig->check("argmax of outputs", rig->plan.argmax(rig->plan.gather_rows(x)));
  rig->finish();
  rig->batches = {prompt_batch(n_tok), prompt_batch(1, Phase::decode)};
  return rig;
}

/// All rows of a batch are the same value.
inline std::unique_ptr<OpRig> equal_rig(float value) {
  auto rig = std::make_unique<OpRig>("equal", 2);
  const Value x = rig->feed(67, std::vector<float>(static_cast<size_t>(rig->n_token() * 67), value));
  rig->check("argmax", rig->plan.argmax(x));
  rig->check("ids", rig->plan.top_k(x, 5).first);
  rig->finish();
  rig->batches = {prompt_batch(2)};
  return rig;
}

/// Two blocks of different lengths; row 0 of each is the anchor and gets no result.
inline std::unique_ptr<OpRig> select_rig(BlockType type, int32_t k, int64_t rank) {
  constexpr int64_t n_vocab = 70;
  auto rig = std::make_unique<OpRig>("select", 13);
  const Weight& predecessor = rig->random_weight(type, {n_vocab, rank});
  const Weight& successor = rig->random_weight(type, {n_vocab, rank});
  const auto [candidates, unary] = rig->plan.top_k(rig->plan.gather_rows(rig->feed(n_vocab, 2)), k);
  const Value gamma = rig->plan.gather_rows(rig->feed(rank));
  const Plan::Walk walk = rig->plan.select_walk(candidates, unary, gamma, predecessor, successor);
  const double size = 6 + 3 * std::sqrt(static_cast<double>(rank));
  rig->check("ids", walk.ids);
  rig->check("confidence", walk.confidence,
             {Tolerance::reduction, static_cast<double>(rank), [=](int64_t, int64_t) { return size; }});
  rig->check("scores", walk.scores,
             {Tolerance::reduction, static_cast<double>(rank), [=](int64_t, int64_t) { return size; }});
  rig->finish();
  TestBatch two = prompt_batch(13, Phase::draft);
  two.sequences = {{.n_tok = 8, .pos = 11, .phase = Phase::draft}, {.n_tok = 5, .pos = 3, .phase = Phase::draft}};
  two.outputs = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12};
  TestBatch one = prompt_batch(2, Phase::draft);
  TestBatch drawn = two;
  drawn.sequences[0].temperature = 0.8f;
  drawn.sequences[0].seed = 7;
  drawn.sequences[0].draw = 3;
  rig->batches = {two, one, drawn};
  return rig;
}

inline void add_drafter_cases(OpCases& cases) {
  cases.push_back({"block_conv_tiny", [] { return block_conv_rig(4, {.side = 0, .n_tap = 2, .group = 2}); }});
  cases.push_back({"block_conv_odd", [] { return block_conv_rig(33, {.side = 1, .n_tap = 3, .group = 11}); }});
  cases.push_back({"block_conv_one_tap", [] { return block_conv_rig(32, {.side = 1, .n_tap = 1, .group = 16}); }});
  cases.push_back({"block_conv_real", [] { return block_conv_rig(1024, {.side = 1, .n_tap = 2, .group = 16}); }});
  cases.push_back({"choose_1", [] { return choose_rig(1, 1, 1, false); }});
  cases.push_back({"choose_7", [] { return choose_rig(3, 7, 7, true); }});
  cases.push_back({"choose_33", [] { return choose_rig(17, 33, 4, true); }});
  cases.push_back({"choose_65", [] { return choose_rig(2, 65, 16, false); }});
  cases.push_back({"choose_vocabulary", [] { return choose_rig(3, 32003, 16, false); }});
  cases.push_back({"choose_vocabulary_ties", [] { return choose_rig(3, 32003, 16, true); }});
  cases.push_back({"choose_equal", [] { return equal_rig(-2); }});
  cases.push_back({"choose_nan", [] { return equal_rig(std::numeric_limits<float>::quiet_NaN()); }});
  cases.push_back({"select_f32", [] { return select_rig(BlockType::f32, 3, 5); }});
  cases.push_back({"select_bf16", [] { return select_rig(BlockType::bf16, 16, 33); }});
  cases.push_back({"select_q8_0", [] { return select_rig(BlockType::q8_0, 16, 256); }});
  cases.push_back({"select_one_candidate", [] { return select_rig(BlockType::f16, 1, 64); }});
}

}  // namespace onebit::test
