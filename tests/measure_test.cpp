// Measuring over texts: perplexity and divergence against plain sums, block by block against all at once, importance
// matrices.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "convert/importance.h"
#include "gguf/blocks.h"
#include "measure/block_walk.h"
#include "measure/evaluation.h"
#include "measure/imatrix.h"
#include "support/expect_error.h"
#include "support/measure_rig.h"
#include "support/runner.h"

namespace onebit {
namespace {

using test::kOneThread, test::no_progress, test::no_stop, test::random_text;
using Measure = test::Measure;

// --- the protocol ---------------------------------------------------------------------------------------------------

TEST_F(Measure, TextsAreCutIntoWholeChunks) {
  const TextChunks cut = chunks("abcdefghij\n", 4);
  EXPECT_EQ(cut.n_chunk(), 2);  // the line end at the end of a file and the rest are dropped
  EXPECT_EQ(cut.evaluated(1), (std::vector<int32_t>{'e', 'f', 'g', 'h'}));
  EXPECT_EQ(chunks("abcdefghij", 4, 1).n_chunk(), 1);
  TextChunks with_start = cut;
  with_start.bos = 7;
  EXPECT_EQ(with_start.evaluated(1), (std::vector<int32_t>{7, 'f', 'g', 'h'}));
  test::expect_refused({"text", "at least 32 tokens", "found 3"}, [&] { chunks("abc", 32); });
}

TEST_F(Measure, PerplexityIsThatOfTheSecondHalves) {
  const TextChunks cut = chunks(random_text(100, 1));
  ASSERT_EQ(cut.n_chunk(), 3);
  test::Runner runner(path(), make_backend("cpu", kOneThread.backend));
  double sum = 0, squares = 0;
  const int64_t n_vocab = runner.n_vocab();
  for (int64_t c = 0; c < 3; ++c) {
    test::Runner fresh(path(), make_backend("cpu", kOneThread.backend));
    const std::vector<float> logits = fresh.run(cut.evaluated(c), 0, Phase::prompt);
    for (int64_t pos = 16; pos <= 30; ++pos) {
      double total = 0;
      for (int64_t v = 0; v < n_vocab; ++v)
        total += std::exp(static_cast<double>(logits[static_cast<size_t>(pos * n_vocab + v)]));
      const int32_t next = cut.tokens[static_cast<size_t>(c * 32 + pos + 1)];
      const double nll = std::log(total) - logits[static_cast<size_t>(pos * n_vocab + next)];
      sum += nll;
      squares += nll * nll;
    }
  }
  const double mean = sum / 45, error = std::sqrt((squares / 45 - mean * mean) / 44);
  LoadedModel model = load(path());
  const Evaluation result = evaluate(model, cut, {}, no_progress);
  EXPECT_EQ(result.n_tok, 45);
  EXPECT_EQ(result.n_chunk, 3);
  EXPECT_FALSE(result.compared);
  EXPECT_NEAR(result.ppl, std::exp(mean), 1e-4 * result.ppl);
  EXPECT_NEAR(result.ppl_err, error * std::exp(mean), 1e-3 * result.ppl);
}

TEST_F(Measure, ChunksLongerThanABatchAreReadInParts) {
  const std::string text = random_text(1100, 5);
  const TextChunks cut = chunks(text, 1024);
  LoadedModel model(Model::open(path(), W4a4::none), kOneThread, 1024);
  std::vector<int64_t> positions;
  model.run(cut.evaluated(0), 600, [&](int64_t pos, std::span<const float> logits) {
    positions.push_back(pos);
    EXPECT_EQ(static_cast<int64_t>(logits.size()) % model.model().config().n_vocab, 0);
  });
  EXPECT_EQ(positions, (std::vector<int64_t>{600}));
  model.run(cut.evaluated(0), 500, [&](int64_t pos, std::span<const float>) { positions.push_back(pos); });
  EXPECT_EQ(positions, (std::vector<int64_t>{600, 500, 512}));
}

TEST_F(Measure, SavedLogitsDivergeFromOthersAndNotFromThemselves) {
  const TextChunks cut = chunks(random_text(200, 2));
  LoadedModel model = load(path());
  const std::string saved = dir_.file("logits.gguf");
  evaluate(model, cut, {saved, ""}, no_progress);
  const Evaluation same = evaluate(model, cut, {"", saved}, no_progress);
  EXPECT_TRUE(same.compared);
  EXPECT_NEAR(same.kld_mean, 0, 1e-6);
  EXPECT_LT(same.kld_p99, 1e-5);
  EXPECT_EQ(same.same_top, 1.0);

  QuantizeOptions coarse;
  coarse.in = path();
  coarse.out = dir_.file("q4.gguf");
  quantize(coarse);
  LoadedModel other = load(coarse.out);
  const Evaluation apart = evaluate(other, cut, {"", saved}, no_progress);
  EXPECT_GT(apart.kld_mean, 1e-4);
  EXPECT_GT(apart.kld_p99, apart.kld_mean);
  EXPECT_GT(apart.kld_err, 0);
  const Evaluation fewer = evaluate(other, chunks(random_text(200, 2), 32, 2), {"", saved}, no_progress);
  EXPECT_EQ(fewer.n_chunk, 2);  // the first chunks of the saved ones will do
}

TEST_F(Measure, SavedLogitsOfOtherTextsAreRefused) {
  LoadedModel model = load(path());
  const std::string saved = dir_.file("logits.gguf");
  evaluate(model, chunks(random_text(100, 2)), {saved, ""}, no_progress);
  test::expect_refused({"logits.gguf", "same text"}, [&] {
    evaluate(model, chunks(random_text(100, 9)), {"", saved}, no_progress);
  });
  test::expect_refused({"logits.gguf", "same text"}, [&] {
    evaluate(model, chunks(random_text(200, 2)), {"", saved}, no_progress);
  });
  test::expect_refused({"tiny.gguf", "save-logits"}, [&] {
    evaluate(model, chunks(random_text(100, 2)), {"", path()}, no_progress);
  });
}

TEST_F(Measure, AnInterruptedEvaluationLeavesNoFile) {
  LoadedModel model = load(path());
  EXPECT_THROW(evaluate(model, chunks(random_text(100, 2)), {dir_.file("logits.gguf"), ""},
                        [](double) { fail(ErrorKind::runtime, "interrupted"); }),
               Error);
  EXPECT_EQ(dir_.count(), 2u);  // the model, and what it was written from
}

TEST(LogitsCodes, DivergenceSurvivesTheCodes) {
  Rng rng(4);
  const CodeTable table;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<float> p(500), q(500);
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = static_cast<float>(12 * rng.uniform());
      q[i] = p[i] + static_cast<float>(0.1 * (rng.uniform() - 0.5));
    }
    p[3] = q[3] = -INFINITY;  // a token that can't come
    double zp = 0, zq = 0, expected = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      zp += std::exp(static_cast<double>(p[i]));
      zq += std::exp(static_cast<double>(q[i]));
    }
    for (size_t i = 0; i < p.size(); ++i) {
      if (i != 3) expected += std::exp(static_cast<double>(p[i])) / zp * (p[i] - std::log(zp) - q[i] + std::log(zq));
    }
    q[3] = -80;
    std::vector<uint16_t> codes(p.size());
    encode_logits(p, codes);
    bool same_top = false;
    EXPECT_NEAR(row_divergence(table, codes, q, same_top), expected, 2e-3 * expected + 1e-6);
  }
}

// --- block by block -------------------------------------------------------------------------------------------------

TEST(BlockWalk, InputsAreThoseOfTheWholeModel) {
  for (const char* name : {"qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_next", "llama"}) {
    test::TempDir dir;
    Model model(GgufFile::open(test::write_golden_model(dir, name)), W4a4::none);
    TextChunks chunks{16, {}, -1};
    for (int32_t i = 0; i < 32; ++i)
      chunks.tokens.push_back((i * 37 + 11) % static_cast<int32_t>(model.config().n_vocab));
    BlockWalk walk(model, chunks, kOneThread);
    ASSERT_EQ(walk.blocks().n_block(), model.config().n_layer) << name;

    Plan whole = model.plan(nullptr);
    std::set<int32_t> wanted;
    for (int64_t b = 0; b < walk.blocks().n_block(); ++b) {
      for (const InputGroup& group : walk.blocks().groups(b)) wanted.insert(group.x.id);
    }
    for (const int32_t id : wanted) whole.output(std::to_string(id), {id});
    const auto backend = make_backend("cpu", kOneThread.backend);
    for (const Weight* weight : whole.weights()) backend->load(*weight);
    const auto states =
        backend->make_states(model.states(), {.n_pages = 1, .n_slots = 1, .n_tape = 1, .cache = CacheType::f32});
    StatePool* const pools[] = {states.get()};
    const auto program = backend->compile(whole, pools, {16, 1});
    std::map<int32_t, std::vector<float>> expected;  // both chunks behind one another
    for (int64_t c = 0; c < 2; ++c) {
      states->clear_slot(0);
      const std::vector<int32_t> tokens = chunks.evaluated(c), pages = {0}, outputs = {15};
      const Sequence sequence{0, 16, 0, Phase::prompt, 0, 0, pages};
      Batch batch;
      batch.tokens = tokens;
      batch.sequences = {&sequence, 1};
      batch.outputs = outputs;
      program->wait(program->submit(batch));
      for (const int32_t id : wanted) {
        const ValueInfo& info = whole.info({id});
        std::vector<float> x(static_cast<size_t>(16 * info.multiple * info.width));
        program->read(whole.find_output(std::to_string(id)), 0, x);
        expected[id].insert(expected[id].end(), x.begin(), x.end());
      }
    }
    int64_t n_group = 0;
    while (walk.next() < walk.blocks().n_block()) {
      std::map<int32_t, std::vector<float>> actual;
      walk.run(
          [&](const InputGroup& group, const InputRows& rows) {
            if (group.n_used == 0 || rows.multiple > 1) {
              actual[group.x.id].insert(actual[group.x.id].end(), rows.x.begin(), rows.x.end());
            }
          },
          no_stop);
      for (const auto& [id, x] : actual) {
        ASSERT_EQ(x.size(), expected[id].size()) << name;
        for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], expected[id][i], 1e-5) << name << " " << id;
        ++n_group;
      }
    }
    EXPECT_GE(n_group, 4 * walk.blocks().n_block()) << name;
  }
}

TEST_F(Measure, ImportanceIsTheSumOfSquares) {
  auto model = Model::open(path(), W4a4::none);
  const TextChunks cut = chunks(random_text(100, 7));
  EXPECT_GT(write_imatrix(*model, cut, kOneThread, "text", dir_.file("im.gguf"), no_progress), 20);
  std::map<std::string, std::vector<double>> sums;
  BlockWalk walk(*model, cut, kOneThread);
  while (walk.next() < walk.blocks().n_block()) {
    walk.run(
        [&](const InputGroup& group, const InputRows& rows) {
          for (const Weight* matrix : group.matrices) {
            auto& sum = sums[matrix->name];
            sum.resize(static_cast<size_t>(group.k));
            for (size_t i = 0; i < rows.x.size(); ++i) {
              sum[i % sum.size()] += static_cast<double>(rows.x[i]) * rows.x[i];
            }
          }
        },
        no_stop);
  }
  const GgufFile file = GgufFile::open(dir_.file("im.gguf"));
  EXPECT_EQ(file.require<std::string>("general.type"), "imatrix");
  EXPECT_EQ(file.require<uint32_t>("imatrix.chunk_count"), 3u);
  EXPECT_EQ(file.require<uint32_t>("imatrix.chunk_size"), 32u);
  Importance importance = Importance::read(file.path());
  EXPECT_EQ(importance.size(), sums.size());
  for (const auto& [name, sum] : sums) {
    const ChannelSquares* squares = importance.find(model->file().tensor(name));
    ASSERT_NE(squares, nullptr) << name;
    for (size_t i = 0; i < sum.size(); ++i)
      EXPECT_NEAR(squares->mean[i], sum[i] / 96, 1e-4 * sum[i] / 96 + 1e-9) << name;
  }
}

TEST(Imatrix, CountsOfExpertsAreTheirRows) {
  test::TempDir dir;
  const std::string path = test::write_golden_model(dir, "qwen3_5_moe");
  Model model(GgufFile::open(path), W4a4::none);
  TextChunks chunks{16, {}, -1};
  for (int32_t i = 0; i < 32; ++i) chunks.tokens.push_back((i * 7 + 1) % static_cast<int32_t>(model.config().n_vocab));
  write_imatrix(model, chunks, kOneThread, "text", dir.file("im.gguf"), no_progress);
  const GgufFile file = GgufFile::open(dir.file("im.gguf"));
  const TensorInfo& counts = file.tensor("blk.0.ffn_down_exps.weight.counts");
  EXPECT_EQ(counts.shape, (std::vector<int64_t>{model.config().n_expert, 1}));
  std::vector<float> n(static_cast<size_t>(model.config().n_expert));
  std::memcpy(n.data(), counts.data.data(), n.size() * 4);
  EXPECT_EQ(std::accumulate(n.begin(), n.end(), 0.0f), static_cast<float>(32 * model.config().n_expert_used));
  EXPECT_EQ(file.tensor("blk.0.ffn_gate_exps.weight.in_sum2").shape,
            (std::vector<int64_t>{model.config().n_expert, model.config().n_embd}));
}

TEST_F(Measure, ImportanceMovesErrorsAndOtherModelsAreRefused) {
  auto model = Model::open(path(), W4a4::none);
  write_imatrix(*model, chunks(random_text(100, 7)), kOneThread, "text", dir_.file("im.gguf"), no_progress);
  QuantizeOptions options;
  options.in = path();
  options.out = dir_.file("plain.gguf");
  quantize(options);
  options.out = dir_.file("weighted.gguf");
  options.importance = dir_.file("im.gguf");
  quantize(options);
  const GgufFile plain = GgufFile::open(dir_.file("plain.gguf")), weighted = GgufFile::open(dir_.file("weighted.gguf"));
  const auto bytes = [](const GgufFile& f, const char* name) {
    return std::vector<uint8_t>(f.tensor(name).data.begin(), f.tensor(name).data.end());
  };
  EXPECT_NE(bytes(plain, "blk.0.ffn_up.weight"), bytes(weighted, "blk.0.ffn_up.weight"));
  options.importance = path();
  test::expect_refused({"tiny.gguf", "importance matrix"}, [&] { quantize(options); });
}

}  // namespace
}  // namespace onebit
