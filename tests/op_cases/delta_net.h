// Cases of delta_net: prompts, decoding, verified and partly committed drafts, slots that are cleared and copied.
#pragma once

namespace onebit::test {

/// Sequences of slots 0 and 1; slot 2 takes a copy in between.
inline std::vector<TestBatch> delta_net_batches() {
  auto batch = [](std::vector<Sequence> sequences) {
    int32_t n_tok = 0;
    for (const Sequence& sequence : sequences) n_tok += sequence.n_tok;
    TestBatch made = prompt_batch(n_tok);
    made.sequences = std::move(sequences);
    return made;
  };
  using enum Phase;
  std::vector<TestBatch> batches = {
      batch({{.n_tok = 5, .phase = prompt, .slot = 0}, {.n_tok = 2, .phase = prompt, .slot = 1}}),
      batch({{.n_tok = 4, .pos = 5, .phase = verify, .slot = 0}, {.n_tok = 1, .pos = 2, .phase = decode, .slot = 1}}),
      batch({{.n_tok = 3, .pos = 7, .phase = verify, .slot = 0, .n_commit = 2}}),
      batch({{.n_tok = 6, .pos = 7, .phase = verify, .slot = 0}, {.n_tok = 1, .pos = 3, .phase = decode, .slot = 1}}),
      batch({{.n_tok = 1, .pos = 13, .phase = decode, .slot = 0, .n_commit = 6}}),
      batch({{.n_tok = 1, .pos = 8, .phase = decode, .slot = 2, .n_commit = 1},
             {.n_tok = 2, .phase = prompt, .slot = 1}}),
      batch({{.n_tok = 17, .pos = 14, .phase = prompt, .slot = 0}}),
      batch({{.n_tok = 1, .pos = 2, .phase = draft, .slot = 1}}),
  };
  batches[4].before = [](StatePool& pool) { pool.copy_slot(0, 2); };  // with the tape of six
  batches[5].before = [](StatePool& pool) { pool.clear_slot(1); };
  return batches;
}

inline std::unique_ptr<OpRig> delta_net_rig(const DeltaNetParams& params) {
  auto rig = std::make_unique<OpRig>("delta_net", 17);
  const int64_t n_channel = 2 * params.n_k_head * params.d_k + params.n_v_head * params.d_v;
  const State& state =
      rig->state({"net", DeltaNetState{n_channel, params.n_tap, params.n_v_head, params.d_k, params.d_v}});
  rig->sizes = {.n_slots = 3, .n_tape = 6};
  const Weight& conv = rig->random_floats({n_channel, params.n_tap}, 0.6f);
  std::vector<float> decay(static_cast<size_t>(params.n_v_head));
  for (size_t h = 0; h < decay.size(); ++h) decay[h] = -0.05f - 0.3f * static_cast<float>(h);
  const Weight& a = rig->floats({params.n_v_head}, decay);
  const Weight& dt = rig->random_floats({params.n_v_head});
  const Value y = rig->plan.delta_net(rig->feed(n_channel, 2), rig->feed(params.n_v_head, 2),
                                      rig->feed(params.n_v_head, 2), conv, a, dt, state, params);
  rig->check("y", y, {Tolerance::reduction, static_cast<double>(params.d_k) * 64, {}, 0.01});
  rig->finish();
  rig->batches = delta_net_batches();
  spread_tokens(*rig);
  return rig;
}

inline void add_delta_net_cases(OpCases& cases) {
  const std::pair<const char*, DeltaNetParams> variants[] = {
      {"tiny", {.n_k_head = 1, .n_v_head = 1, .d_k = 4, .d_v = 4, .n_tap = 4}},
      {"odd", {.n_k_head = 1, .n_v_head = 3, .d_k = 12, .d_v = 20, .n_tap = 3}},
      {"tiled", {.n_k_head = 2, .n_v_head = 4, .d_k = 16, .d_v = 16, .n_tap = 4}},
      {"grouped", {.n_k_head = 2, .n_v_head = 4, .d_k = 16, .d_v = 16, .n_tap = 4, .map = HeadMap::grouped}},
      {"real", {.n_k_head = 2, .n_v_head = 4, .d_k = 128, .d_v = 128, .n_tap = 4}},
  };
  for (const auto& [name, params] : variants) {
    cases.push_back({fmt::format("delta_net_{}", name), [params = params] { return delta_net_rig(params); }});
  }
}

}  // namespace onebit::test
