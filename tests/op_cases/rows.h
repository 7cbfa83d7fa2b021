// Cases of embed, gather_rows, store_rows and load_rows.
#pragma once

#include <limits>

namespace onebit::test {

inline std::unique_ptr<OpRig> embed_rig(BlockType type, int32_t n_tok, int64_t width) {
  auto rig = std::make_unique<OpRig>("embed", n_tok);
  const Weight& table = rig->random_weight(type, {rig->n_token(), width});
  const Value x = rig->plan.embed(table);
  const bool copies = !type_info(type).quantised;
  rig->check("y", x, {.tolerance = copies ? Tolerance::exact : Tolerance::rounding});
  rig->check("some", rig->plan.gather_rows(x), {.tolerance = copies ? Tolerance::exact : Tolerance::rounding});
  rig->finish();
  rig->batches = {prompt_batch(n_tok)};
  for (int32_t i = 0; i < n_tok; ++i) rig->batches[0].tokens[static_cast<size_t>(i)] = (i * 5 + 2) % n_tok;
  rig->batches[0].outputs.clear();
  for (int32_t i = 0; i < n_tok; i += 2) rig->batches[0].outputs.push_back(i);
  rig->batches.push_back(prompt_batch(1));
  rig->batches[1].outputs.clear();
  return rig;
}

/// A table that is both the embedding and the output matrix.
inline std::unique_ptr<OpRig> tied_rig(BlockType type) {
  auto rig = std::make_unique<OpRig>("tied", 5);
  const Weight& table = rig->random_weight(type, {70, 256});
  const std::vector<float> rows = random_values(rig->random(), rig->n_token() * 256);
  rig->check("embedding", rig->plan.embed(table), {.tolerance = Tolerance::rounding});
  Value x = rig->feed(256, rows);
  if (type_info(type).quantised) x = rig->plan.quantize(x, {});
  rig->check("logits", rig->plan.matmul(x, table), matmul_bound(rows, table));
  rig->finish();
  rig->batches = {prompt_batch(5), prompt_batch(1, Phase::decode)};
  return rig;
}

/// Two stores side by side with a gap that keeps what it had; rows come back in another order, cleaned.
inline std::unique_ptr<OpRig> rows_buffer_rig() {
  auto rig = std::make_unique<OpRig>("rows", 6);
  const State& buffer = rig->state({"buffer", RowsState{14}});
  rig->sizes.n_rows = 8;
  std::vector<float> values = random_values(rig->random(), rig->n_token() * 5);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[6] = std::numeric_limits<float>::infinity();
  values[8] = -1e9f;
  values[12] = 65504;
  rig->plan.store_rows(rig->feed(5, values), buffer, 0);
  rig->plan.store_rows(rig->feed(7), buffer, 7);
  rig->check("loaded", rig->plan.load_rows(buffer));
  rig->finish();
  for (const bool taps : {true, false, true}) {
    TestBatch batch = prompt_batch(taps ? 6 : 4);
    for (int32_t i = 0; taps && i < batch.n_tok(); ++i) batch.tap_rows.push_back(i == 4 ? -1 : (i * 3 + 2) % 8);
    for (int32_t i = 0; i < batch.n_tok(); ++i) batch.source_rows.push_back((i * 5 + 1) % 8);
    rig->batches.push_back(batch);
  }
  rig->batches[1].tokens = {8, 7, 6, 5};  // not stored: the first batch's rows are loaded
  rig->batches[2].tokens = {5, 4, 3, 2, 1, 0};
  return rig;
}

inline void add_rows_cases(OpCases& cases) {
  for (const BlockType type : decodable_types()) {
    const int64_t width = type_info(type).block_elems == 1 ? 33 : type_info(type).block_elems * 3;
    cases.push_back({fmt::format("embed_{}", type_name(type)), [=] { return embed_rig(type, 9, width); }});
    cases.push_back({fmt::format("tied_{}", type_name(type)), [=] { return tied_rig(type); }});
  }
  cases.push_back({"embed_f32_1x1", [] { return embed_rig(BlockType::f32, 1, 1); }});
  cases.push_back({"store_load_rows", rows_buffer_rig});
}

}  // namespace onebit::test
