// Pins the reference backend's ops with state: attention and what it can see, the delta net and its tape, pools, and
// what programs refuse.
#include <gtest/gtest.h>

#include "backend/ref/ref.h"
#include "op_cases.h"
#include "support/expect_error.h"

namespace onebit::test {
namespace {

Result result_of(const std::vector<Result>& results, size_t batch, const std::string& name) {
  for (const Result& result : results) {
    if (result.where == fmt::format("batch {}, {}", batch, name)) return result;
  }
  ADD_FAILURE() << "no output " << name;
  return {};
}

// --- what attention sees ---------------------------------------------------------------------------------------------

/// With a query of zeros all visible rows weigh the same. Values have two columns: a cached row of token t is (2^t, 0),
/// a row of the block is (0, 2^t). So n times the output are the sets of visible tokens as bits, n their number.
struct Visible {
  std::vector<int> cached, block;
  bool operator==(const Visible& other) const = default;
};

Visible visible_rows(const float* mean, size_t n) {
  Visible seen;
  for (int column = 0; column < 2; ++column) {
    const float sum = mean[column] * static_cast<float>(n);
    const long bits = std::lround(sum);
    EXPECT_NEAR(sum, static_cast<float>(bits), 0.1);
    for (int t = 0; t < 24; ++t) {
      if (bits >> t & 1) (column == 0 ? seen.cached : seen.block).push_back(t);
    }
  }
  return seen;
}

std::vector<float> powers_of_two(size_t column) {
  std::vector<float> values(48);
  for (size_t t = 0; t < 24; ++t) values[2 * t + column] = std::ldexp(1.0f, static_cast<int>(t));
  return values;
}

/// Attention of one head; token t is also the position.
void build_visibility(OpRig& rig, AttentionParams params, bool block) {
  const State& cache = rig.state({"cache", KvState{1, 2}});
  rig.sizes = {.n_pages = 2, .cache = CacheType::f32};
  params.n_head = params.n_head_kv = 1;
  params.d_head = 2;
  params.scale = 1;
  const Value zeros = rig.feed(2, std::vector<float>(48));
  rig.plan.kv_store(zeros, rig.feed(2, powers_of_two(0)), cache);
  const Value v = rig.feed(2, powers_of_two(1));
  rig.check(
      "y", block ? rig.plan.block_attention(zeros, zeros, v, cache, params) : rig.plan.attention(zeros, cache, params));
}

TestBatch rows_at(int32_t pos, int32_t n_tok, Phase phase) {
  TestBatch batch = prompt_batch(n_tok, phase);
  batch.sequences[0].pos = pos;
  for (int32_t i = 0; i < n_tok; ++i) batch.tokens[static_cast<size_t>(i)] = pos + i;
  batch.pages = {{1}};
  return batch;
}

/// first, first + 1, ..., last; empty when last < first.
std::vector<int> range(int first, int last) {
  std::vector<int> all;
  for (int i = first; i <= last; ++i) all.push_back(i);
  return all;
}

TEST(Attention, SeesItselfAndTheWindowBeforeIt) {
  for (const int64_t window : {0, 1, 4, 20, 100}) {
    OpRig rig("visibility", 21);
    build_visibility(rig, {.window = window}, false);
    rig.batches = {rows_at(0, 10, Phase::prompt), rows_at(10, 1, Phase::decode), rows_at(11, 3, Phase::verify),
                   rows_at(12, 2, Phase::decode)};  // steps back over rows that were stored before
    const std::vector<Result> results = run_rig(rig, *make_ref_backend());
    for (size_t b = 0; b < rig.batches.size(); ++b) {
      const Result y = result_of(results, b, "y");
      for (int r = 0; r < rig.batches[b].n_tok(); ++r) {
        const int pos = rig.batches[b].sequences[0].pos + r;
        const int first = window == 0 ? 0 : std::max(0, pos - static_cast<int>(window) + 1);
        const Visible expected{range(first, pos), {}};
        EXPECT_EQ(visible_rows(&y.values[2 * static_cast<size_t>(r)], expected.cached.size()), expected)
            << "window " << window << " position " << pos;
      }
    }
  }
}

TEST(BlockAttention, SeesContextInTheWindowAndItsOwnRowsOnly) {
  for (const int64_t window : {0, 4, 6, 100}) {
    for (const bool causal : {false, true}) {
      OpRig rig("visibility", 21);
      build_visibility(rig, {.window = window, .causal = causal}, true);
      // The last block begins at 9, although rows 9 to 13 of the blocks before are still in the cache, and this plan
      // stores the block's own rows as well: neither may be seen.
      rig.batches = {rows_at(0, 10, Phase::draft), rows_at(10, 4, Phase::draft), rows_at(9, 3, Phase::draft)};
      const std::vector<Result> results = run_rig(rig, *make_ref_backend());
      for (size_t b = 0; b < rig.batches.size(); ++b) {
        const Result y = result_of(results, b, "y");
        const int n_tok = rig.batches[b].n_tok(), begin = rig.batches[b].sequences[0].pos;
        const int far =
            window == 0 ? 100 : static_cast<int>(window) - 1;  // most positions between two that see each other
        for (int i = 0; i < n_tok; ++i) {
          const int pos = begin + i, last = std::min(begin + n_tok - 1, causal ? pos : pos + far);
          const Visible expected{range(std::max(0, pos - far), begin - 1), range(std::max(begin, pos - far), last)};
          EXPECT_EQ(visible_rows(&y.values[2 * static_cast<size_t>(i)], expected.cached.size() + expected.block.size()),
                    expected)
              << "window " << window << " block " << b << " row " << i;
        }
      }
    }
  }
}

TEST(Pool, CopiedPageGoesItsOwnWay) {
  OpRig rig("pages", 21);
  build_visibility(rig, {}, false);
  TestBatch fork = rows_at(10, 1, Phase::decode), change = rows_at(5, 1, Phase::decode),
            after = rows_at(11, 1, Phase::decode);
  fork.pages = after.pages = {{0}};
  fork.before = [](StatePool& pool) { pool.copy_page(1, 0); };
  change.tokens = {20};  // in the original only
  rig.batches = {rows_at(0, 10, Phase::prompt), fork, change, after};
  const std::vector<Result> results = run_rig(rig, *make_ref_backend());
  auto seen = [&](size_t batch, size_t n) {
    return visible_rows(result_of(results, batch, "y").values.data(), n).cached;
  };
  EXPECT_EQ(seen(1, 11), range(0, 10));
  EXPECT_EQ(seen(2, 6), (std::vector<int>{0, 1, 2, 3, 4, 20}));
  EXPECT_EQ(seen(3, 12), range(0, 11));
}

TEST(Attention, ByHandWithTwoKeyHeads) {
  // Two positions, four query heads on two key heads, d_head 1: scores scale * q * k, values told apart by key head.
  for (const CacheType cache_type : {CacheType::f32, CacheType::f16}) {
    OpRig rig("by hand", 2);
    const State& cache = rig.state({"cache", KvState{2, 1}});
    rig.sizes = {.n_pages = 1, .cache = cache_type};
    rig.plan.kv_store(rig.feed(2, {1, -1, 3, 0.5f}), rig.feed(2, {10, 1000, 20, 2049}), cache);
    const Value q = rig.feed(4, {0, 0, 0, 0, 0, 1, 2, -1});
    rig.check("y", rig.plan.attention(q, cache, {.n_head = 4, .n_head_kv = 2, .d_head = 1, .scale = 0.5f}));
    rig.batches = {prompt_batch(2)};
    rig.batches[0].pages = {{0}};
    const std::vector<float> y = result_of(run_rig(rig, *make_ref_backend()), 0, "y").values;
    const double last = cache_type == CacheType::f32 ? 2049 : 2048;  // f16 has 11 bits, ties go to even
    auto mix = [](double a, double b, double difference) { return a + (b - a) / (1 + std::exp(-difference)); };
    const double expected[] = {10,
                               10,
                               1000,
                               1000,
                               mix(10, 20, 0),
                               mix(10, 20, 0.5 * 2),
                               mix(1000, last, 0.5 * 2 * 1.5),
                               mix(1000, last, -0.5 * 1.5)};
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(y[i], expected[i], 2e-4) << i;
  }
}

// --- delta net -------------------------------------------------------------------------------------------------------

/// The delta net in f64, straight from the formula: S as [d_k, d_v], whole sequence at once.
std::vector<double> delta_net_f64(const DeltaNetParams& p, const std::vector<float>& u, const std::vector<float>& beta,
                                  const std::vector<float>& alpha, const std::vector<float>& conv,
                                  const std::vector<float>& a, const std::vector<float>& dt) {
  const auto n_k = static_cast<size_t>(p.n_k_head), n_v = static_cast<size_t>(p.n_v_head),
             n_tap = static_cast<size_t>(p.n_tap);
  const auto d_k = static_cast<size_t>(p.d_k), d_v = static_cast<size_t>(p.d_v);
  const size_t width = 2 * n_k * d_k + n_v * d_v, n_tok = u.size() / width;
  std::vector<double> y;
  std::vector<double> s(n_v * d_k * d_v);
  for (size_t t = 0; t < n_tok; ++t) {
    std::vector<double> c(width);
    for (size_t i = 0; i < width; ++i) {
      for (size_t m = 0; m < n_tap; ++m) {
        if (t + m + 1 >= n_tap) c[i] += static_cast<double>(conv[i * n_tap + m]) * u[(t + m + 1 - n_tap) * width + i];
      }
      c[i] /= 1 + std::exp(-c[i]);
    }
    auto normalised = [&](size_t at) {
      double sum = 0;
      for (size_t i = 0; i < d_k; ++i) sum += c[at + i] * c[at + i];
      std::vector<double> x(d_k);
      for (size_t i = 0; i < d_k; ++i) x[i] = c[at + i] / std::sqrt(sum + static_cast<double>(p.eps));
      return x;
    };
    for (size_t h = 0; h < n_v; ++h) {
      const size_t kh = p.map == HeadMap::tiled ? h % n_k : h / (n_v / n_k);
      const std::vector<double> q = normalised(kh * d_k), k = normalised((n_k + kh) * d_k);
      const double b = 1 / (1 + std::exp(-static_cast<double>(beta[t * n_v + h])));
      const double g = a[h] * std::log1p(std::exp(static_cast<double>(alpha[t * n_v + h]) + dt[h]));
      double* state = s.data() + h * d_k * d_v;
      for (size_t i = 0; i < d_k * d_v; ++i) state[i] *= std::exp(g);
      for (size_t j = 0; j < d_v; ++j) {
        double seen = 0, out = 0;
        for (size_t i = 0; i < d_k; ++i) seen += state[i * d_v + j] * k[i];
        const double delta = b * (c[2 * n_k * d_k + h * d_v + j] - seen);
        for (size_t i = 0; i < d_k; ++i) {
          state[i * d_v + j] += k[i] * delta;
          out += state[i * d_v + j] * q[i] / std::sqrt(static_cast<double>(d_k));
        }
        y.push_back(out);
      }
    }
  }
  return y;
}

TEST(DeltaNet, FollowsTheRecurrence) {
  for (const HeadMap map : {HeadMap::tiled, HeadMap::grouped}) {
    const DeltaNetParams params{.n_k_head = 2, .n_v_head = 4, .d_k = 8, .d_v = 6, .n_tap = 4, .map = map};
    constexpr int64_t width = 2 * 2 * 8 + 4 * 6, n_tok = 20;
    Rng rng(3);
    const std::vector<float> u = random_values(rng, n_tok * width), beta = random_values(rng, n_tok * 4);
    const std::vector<float> alpha = random_values(rng, n_tok * 4), conv = random_values(rng, width * 4);
    const std::vector<float> a = {-0.1f, -0.5f, -1, -0.01f}, dt = {0.5f, -1, 0, 30};  // 30: softplus is linear
    OpRig rig("recurrence", n_tok);
    const State& state = rig.state({"net", DeltaNetState{width, 4, 4, 8, 6}});
    rig.sizes = {.n_slots = 1};
    rig.check(
        "y", rig.plan.delta_net(rig.feed(width, u), rig.feed(4, beta), rig.feed(4, alpha), rig.floats({width, 4}, conv),
                                rig.floats({4}, a), rig.floats({4}, dt), state, params));
    rig.batches = {prompt_batch(n_tok)};
    const std::vector<float> y = result_of(run_rig(rig, *make_ref_backend()), 0, "y").values;
    const std::vector<double> expected = delta_net_f64(params, u, beta, alpha, conv, a, dt);
    ASSERT_EQ(y.size(), expected.size());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-5) << i;
  }
}

TEST(DeltaNet, OneChannelByHand) {
  // d = 1 makes q and k signs: with silu(u) large, q = k = 1. No decay (a = 0), full writing (beta large): S becomes v.
  const DeltaNetParams params{.n_k_head = 1, .n_v_head = 1, .d_k = 1, .d_v = 1, .n_tap = 2};
  OpRig rig("by hand", 3);
  const State& state = rig.state({"net", DeltaNetState{3, 2, 1, 1, 1}});
  rig.sizes = {.n_slots = 1};
  const Value u = rig.feed(3, {30, 30, 40, 30, 30, 50, 30, 30, 60});
  const Value beta = rig.feed(1, {100, 0, 100}), alpha = rig.feed(1, {0, 0, 0});
  // The convolution adds half of the row before: v = 40, 70, 85.
  const Weight& conv = rig.floats({3, 2}, {0.5f, 1, 0.5f, 1, 0.5f, 1});
  rig.check("y", rig.plan.delta_net(u, beta, alpha, conv, rig.floats({1}, {0}), rig.floats({1}, {0}), state, params));
  rig.batches = {prompt_batch(3)};
  const std::vector<float> y = result_of(run_rig(rig, *make_ref_backend()), 0, "y").values;
  EXPECT_NEAR(y[0], 40, 1e-4);
  EXPECT_NEAR(y[1], 55, 1e-4);  // halfway from 40 to 70
  EXPECT_NEAR(y[2], 85, 1e-4);
}

// --- what programs and backends refuse -------------------------------------------------------------------------------

/// A plan with every kind of state: submits one sequence as given.
void submit_sequence(const Sequence& sequence, const std::vector<int32_t>& pages, std::vector<int32_t> outputs = {}) {
  OpRig rig("limits", 4);
  const State& cache = rig.state({"cache", KvState{1, 1}});
  const State& net = rig.state({"net", DeltaNetState{3, 2, 1, 1, 1}});
  rig.sizes = {.n_pages = 2, .n_slots = 2, .n_tape = 2, .cache = CacheType::f32};
  const Value x = rig.feed(1);
  rig.plan.kv_store(x, x, cache);
  rig.check("y", rig.plan.attention(x, cache, {.n_head = 1, .n_head_kv = 1, .d_head = 1, .scale = 1}));
  rig.plan.delta_net(rig.feed(3), x, x, rig.random_floats({3, 2}), rig.random_floats({1}), rig.random_floats({1}), net,
                     {.n_k_head = 1, .n_v_head = 1, .d_k = 1, .d_v = 1, .n_tap = 2});
  TestBatch batch = prompt_batch(std::min(sequence.n_tok, 7));
  batch.tokens.resize(static_cast<size_t>(sequence.n_tok));
  batch.sequences = {sequence};
  batch.pages = {pages};
  batch.outputs = std::move(outputs);
  rig.batches = {batch};
  run_rig(rig, *make_ref_backend());
}

TEST(RefDeathTest, BatchesOutsideTheLimitsAreBrokenInvariants) {
  testing::FLAGS_gtest_death_test_style = "fast";
  submit_sequence({.n_tok = 4}, {1});  // the plan itself is fine
  EXPECT_DEATH(submit_sequence({.n_tok = 8}, {1}), "limits_.n_tok");
  EXPECT_DEATH(submit_sequence({.n_tok = 4, .pos = 62}, {1}), "pages");  // a page is missing
  EXPECT_DEATH(submit_sequence({.n_tok = 4}, {-1}), "pages");            // dropped
  EXPECT_DEATH(submit_sequence({.n_tok = 4}, {2}), "n_page_");           // of no pool
  EXPECT_DEATH(submit_sequence({.n_tok = 4, .slot = 2}, {1}), "n_slot_");
  EXPECT_DEATH(submit_sequence({.n_tok = 4, .n_commit = 1}, {1}), "tape");           // nothing was verified
  EXPECT_DEATH(submit_sequence({.n_tok = 3, .phase = Phase::verify}, {1}), "tape");  // the tape holds two rows
  EXPECT_DEATH(submit_sequence({.n_tok = 4}, {1}, {1, 1}), "output");
  EXPECT_DEATH(submit_sequence({.n_tok = 4}, {1}, {4}), "output");
}

TEST(RefDeathTest, WeightsMustBeLoaded) {
  OpRig rig("not loaded", 1);
  const std::unique_ptr<Backend> backend = make_ref_backend();
  EXPECT_DEATH(backend->compile(rig.plan, {}, rig.limits), "loaded");
}

TEST(Registry, NamesWhatItKnowsAndWhatItHas) {
  EXPECT_EQ(make_backend("ref", {})->info().name, "ref");
  expect_error(ErrorKind::usage, {"\"gpu\"", "auto", "cpu", "ref", "cuda", "vulkan", "rocm"},
               [] { make_backend("gpu", {}); });
  expect_refused({"vulkan", "ref"}, [] { make_backend("vulkan", {}); });
}

}  // namespace
}  // namespace onebit::test
