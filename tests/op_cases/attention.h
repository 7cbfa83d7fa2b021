// Cases of kv_store, attention and block_attention: paged caches of both types, windows, several sequences.
#pragma once

namespace onebit::test {

struct AttentionSize {
  int64_t n_head, n_head_kv, d_head, window;
  CacheType cache;
};

inline AttentionParams attention_params(const AttentionSize& size) {
  return {.n_head = size.n_head,
          .n_head_kv = size.n_head_kv,
          .d_head = size.d_head,
          .scale = 1 / std::sqrt(static_cast<float>(size.d_head)),
          .window = size.window};
}

/// Values are below 6 and scores below about 6 in magnitude; their errors multiply the weights.
inline Bound attention_bound(int64_t d_head) {
  return {Tolerance::reduction, static_cast<double>(d_head + 128), [](int64_t, int64_t) { return 6.0; }};
}

/// Tokens of a batch differ from those of the batches before it.
inline void spread_tokens(OpRig& rig) {
  for (size_t b = 0; b < rig.batches.size(); ++b) {
    for (size_t i = 0; i < rig.batches[b].tokens.size(); ++i) {
      rig.batches[b].tokens[i] = static_cast<int32_t>((i * 7 + b * 29) % static_cast<size_t>(rig.n_token()));
    }
  }
}

/// Two sequences in scattered pages: prompts, a chunk, decoding; then a shared first page is copied and continued.
inline std::vector<TestBatch> attention_batches(int64_t window) {
  TestBatch prompts = prompt_batch(70 + 9);
  prompts.sequences = {{.n_tok = 70}, {.n_tok = 9, .slot = 1}};
  prompts.pages = {{3, 0}, {5}};
  prompts.outputs = {0, 68, 69, 70, 78};
  TestBatch chunk = prompt_batch(60 + 1);
  chunk.sequences = {{.n_tok = 60, .pos = 70}, {.n_tok = 1, .pos = 9, .phase = Phase::decode, .slot = 1}};
  chunk.pages = {{3, 0, 1}, {5}};
  chunk.outputs = {60};
  TestBatch decode = prompt_batch(2);
  decode.sequences = {{.n_tok = 1, .pos = 10, .phase = Phase::decode, .slot = 1},
                      {.n_tok = 1, .pos = 130, .phase = Phase::decode}};
  const bool drops = window > 0 && window <= 130 - 64;  // positions below 64 are out of the window
  decode.pages = {{5}, {drops ? -1 : 3, 0, 1}};
  TestBatch fork = prompt_batch(3);
  fork.sequences = {{.n_tok = 3, .pos = 10, .phase = Phase::verify}};
  fork.pages = {{2, 4}};
  fork.before = [](StatePool& pool) { pool.copy_page(5, 2); };
  TestBatch other = prompt_batch(1);
  other.sequences = {{.n_tok = 1, .pos = 11, .phase = Phase::decode, .slot = 1}};
  other.pages = {{5}};
  return {prompts, chunk, decode, fork, other};
}

inline std::unique_ptr<OpRig> attention_rig(const AttentionSize& size) {
  auto rig = std::make_unique<OpRig>("attention", 79);
  const State& cache = rig->state({"cache", KvState{size.n_head_kv, size.d_head}});
  rig->sizes = {.n_pages = 6, .cache = size.cache};
  const int64_t kv_width = size.n_head_kv * size.d_head;
  rig->plan.kv_store(rig->feed(kv_width), rig->feed(kv_width), cache);
  const Value q = rig->feed(size.n_head * size.d_head);
  const AttentionParams params = attention_params(size);
  rig->check("y", rig->plan.attention(q, cache, params), attention_bound(size.d_head));
  rig->check("outputs", rig->plan.attention(rig->plan.gather_rows(q), cache, params), attention_bound(size.d_head));
  rig->finish();
  rig->batches = attention_batches(size.window);
  spread_tokens(*rig);
  return rig;
}

/// A context, then blocks that begin before the end of what earlier blocks have left in the cache: those rows, and the
/// rows that this plan stores at the block's own positions, must stay unseen. Then a context whose front is missing.
inline std::unique_ptr<OpRig> block_attention_rig(const AttentionSize& size, bool causal) {
  auto rig = std::make_unique<OpRig>("block_attention", 40);
  const State& cache = rig->state({"cache", KvState{size.n_head_kv, size.d_head}});
  rig->sizes = {.n_pages = 4, .cache = size.cache};
  const int64_t kv_width = size.n_head_kv * size.d_head;
  rig->plan.kv_store(rig->feed(kv_width), rig->feed(kv_width), cache);
  AttentionParams params = attention_params(size);
  params.causal = causal;
  const Value y = rig->plan.block_attention(rig->feed(size.n_head * size.d_head), rig->feed(kv_width),
                                            rig->feed(kv_width), cache, params);
  rig->check("y", y, attention_bound(size.d_head));
  rig->finish();
  TestBatch context = prompt_batch(40);
  context.pages = {{2}};
  TestBatch block = prompt_batch(8, Phase::draft);
  block.sequences[0].pos = 38;
  block.pages = {{2}};
  TestBatch two = prompt_batch(8 + 5, Phase::draft);
  two.sequences = {{.n_tok = 8, .pos = 0, .phase = Phase::draft}, {.n_tok = 5, .pos = 36, .phase = Phase::draft}};
  two.pages = {{0}, {2}};
  TestBatch late = prompt_batch(30), last = prompt_batch(8, Phase::draft);
  late.sequences[0].pos = 64;
  last.sequences[0].pos = 90;
  late.pages = last.pages = {{-1, 1}};
  rig->batches = {context, block, two, late, last};
  spread_tokens(*rig);
  return rig;
}

inline void add_attention_cases(OpCases& cases) {
  constexpr CacheType f32 = CacheType::f32, f16 = CacheType::f16, q8_0 = CacheType::q8_0;
  for (const AttentionSize size :
       {AttentionSize{1, 1, 4, 0, f32}, AttentionSize{3, 1, 20, 5, f16}, AttentionSize{4, 2, 16, 0, f16},
        AttentionSize{4, 4, 64, 64, f32}, AttentionSize{6, 2, 128, 66, f16}, AttentionSize{8, 2, 256, 0, f16},
        AttentionSize{2, 1, 64, 1, f32}, AttentionSize{5, 1, 96, 65, f32}, AttentionSize{3, 1, 32, 5, q8_0},
        AttentionSize{6, 2, 128, 66, q8_0}, AttentionSize{8, 2, 256, 0, q8_0}}) {
    const std::string suffix =
        fmt::format("{}x{}x{}_window{}_{}", size.n_head, size.n_head_kv, size.d_head, size.window,
                    size.cache == f32   ? "f32"
                    : size.cache == f16 ? "f16"
                                        : "q8_0");
    cases.push_back({"attention_" + suffix, [=] { return attention_rig(size); }});
    for (const bool causal : {false, true}) {
      cases.push_back({fmt::format("block_attention_{}_{}", causal ? "causal" : "open", suffix),
                       [=] { return block_attention_rig(size, causal); }});
    }
  }
}

}  // namespace onebit::test
