// Measuring over texts: perplexity and divergence against plain sums, block by block against all at once, rounding by
// second moments, balance, importance matrices, and the list of matrices that keep 8-bit activations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "convert/convert.h"
#include "convert/importance.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"
#include "measure/calibration.h"
#include "measure/evaluation.h"
#include "measure/gptq.h"
#include "measure/imatrix.h"
#include "measure/quantize_model.h"
#include "support/expect_error.h"
#include "support/runner.h"
#include "support/temp_dir.h"
#include "support/tiny_text_model.h"

namespace onebit {
namespace {

const MeasureOptions kOneThread = {.device = "cpu", .backend = {.n_threads = 1, .isa = {}}, .cache = CacheType::f32};

void no_stop() {}
void no_progress(double) {}

std::string random_text(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::string text;
  for (size_t i = 0; i < n; ++i) text += static_cast<char>('a' + static_cast<int>(rng.uniform() * 20));
  return text;
}

class Measure : public ::testing::Test {
 protected:
  Measure() { test::write_tiny_text_model(path()); }
  std::string path() const { return dir_.file("tiny.gguf"); }
  TextChunks chunks(const std::string& text, int64_t n_ctx = 32, int64_t n = 0) {
    return cut_text(*Model::open(path(), W4a4::none), text, n_ctx, n, "text");
  }
  LoadedModel load(const std::string& file, W4a4Choice choice = W4a4::none) {
    return {Model::open(file, choice), kOneThread, 32};
  }
  ModelQuantizeOptions wish(const std::string& out) {
    ModelQuantizeOptions options;
    options.file.in = path();
    options.file.out = dir_.file(out);
    options.file.threads = 1;
    options.measure = kOneThread;
    options.text = random_text(40 * 32, 3);
    options.text_name = "text";
    options.n_ctx = 32;
    options.stop = no_stop;
    return options;
  }
  test::TempDir dir_;
};

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
    ConvertOptions convert_options;
    convert_options.in = std::string(ONEBIT_SOURCE_DIR "/tests/golden/tiny/") + name;
    convert_options.out = dir.file("model.gguf");
    convert_options.type = BlockType::f32;
    convert(convert_options);
    Model model(GgufFile::open(convert_options.out), W4a4::none);
    TextChunks chunks{16, {}, -1};
    for (int32_t i = 0; i < 32; ++i)
      chunks.tokens.push_back((i * 37 + 11) % static_cast<int32_t>(model.config().n_vocab));
    BlockWalk walk(model, chunks, kOneThread);
    ASSERT_EQ(walk.n_block(), model.config().n_layer) << name;

    Plan whole = model.plan(nullptr);
    std::set<int32_t> wanted;
    for (int64_t b = 0; b < walk.n_block(); ++b) {
      for (const InputGroup& group : walk.groups(b)) wanted.insert(group.x.id);
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
    while (walk.next() < walk.n_block()) {
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
    EXPECT_GE(n_group, 4 * walk.n_block()) << name;
  }
}

TEST_F(Measure, ImportanceIsTheSumOfSquares) {
  auto model = Model::open(path(), W4a4::none);
  const TextChunks cut = chunks(random_text(100, 7));
  EXPECT_GT(write_imatrix(*model, cut, kOneThread, "text", dir_.file("im.gguf"), no_progress), 20);
  std::map<std::string, std::vector<double>> sums;
  BlockWalk walk(*model, cut, kOneThread);
  while (walk.next() < walk.n_block()) {
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
  ConvertOptions convert_options;
  convert_options.in = ONEBIT_SOURCE_DIR "/tests/golden/tiny/qwen3_5_moe";
  convert_options.out = dir.file("model.gguf");
  convert_options.type = BlockType::f32;
  convert(convert_options);
  Model model(GgufFile::open(convert_options.out), W4a4::none);
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

// --- rounding by second moments -------------------------------------------------------------------------------------

/// Correlated inputs x [n, k] and their mean x x'.
struct Inputs {
  int64_t k;
  std::vector<float> moments;
};

Inputs correlated(int64_t k, int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> mix(static_cast<size_t>(k * 8)), x(static_cast<size_t>(n * k));
  for (float& v : mix) v = static_cast<float>(rng.uniform() - 0.5);
  for (int64_t r = 0; r < n; ++r) {
    float latent[8];
    for (float& v : latent) v = static_cast<float>(4 * (rng.uniform() - 0.5));
    for (int64_t i = 0; i < k; ++i) {
      float& v = x[static_cast<size_t>(r * k + i)];
      v = static_cast<float>(0.5 * (rng.uniform() - 0.5));
      for (int64_t j = 0; j < 8; ++j) v += latent[j] * mix[static_cast<size_t>(i * 8 + j)];
    }
  }
  ThreadPool pool(1);
  Moments moments{k, std::vector<std::vector<float>>(1), std::vector<int64_t>(1)};
  moments.add(0, x.data(), n, pool);
  return {k, moments.mean(0)};
}

double loss(const Inputs& in, const std::vector<float>& w, const uint8_t* q4, int64_t n) {
  std::vector<float> q(w.size());
  decode_row(BlockType::q4_0, q4, q.data(), static_cast<int64_t>(q.size()));
  double sum = 0;
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < in.k; ++i) {
      for (int64_t j = 0; j < in.k; ++j) {
        const double h = in.moments[static_cast<size_t>(std::min(i, j) * in.k + std::max(i, j))];
        sum += h * (w[static_cast<size_t>(r * in.k + i)] - q[static_cast<size_t>(r * in.k + i)]) *
               (w[static_cast<size_t>(r * in.k + j)] - q[static_cast<size_t>(r * in.k + j)]);
      }
    }
  }
  return sum;
}

std::vector<float> random_matrix(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> w(static_cast<size_t>(n));
  for (float& v : w) v = static_cast<float>(rng.uniform() + rng.uniform() - 1);
  return w;
}

TEST(Gptq, LosesLessThanTheScaleSearch) {
  constexpr int64_t kN = 37;  // not a multiple of the lanes
  const Inputs in = correlated(160, 2000, 1);
  const std::vector<float> w = random_matrix(kN * in.k, 2);
  std::vector<uint8_t> searched(static_cast<size_t>(kN * row_bytes(BlockType::q4_0, in.k))), first = searched,
                                                                                             again = searched;
  encode_row_search(BlockType::q4_0, w.data(), searched.data(), kN * in.k);
  ThreadPool pool(2);
  const GptqMetric metric(in.moments, in.k, 0.01, pool);
  gptq_q4_0(metric, w.data(), kN, first.data(), {.n_again = 0}, pool);
  gptq_q4_0(metric, w.data(), kN, again.data(), {.n_again = 2}, pool);
  const double a = loss(in, w, searched.data(), kN), b = loss(in, w, first.data(), kN),
               c = loss(in, w, again.data(), kN);
  EXPECT_LT(b, 0.5 * a);
  EXPECT_LT(c, b);
}

TEST(Gptq, WithoutCorrelationItIsAScaleSearch) {
  constexpr int64_t kN = 16, kK = 64;
  Inputs in{kK, std::vector<float>(kK * kK)};
  for (int64_t i = 0; i < kK; ++i) in.moments[static_cast<size_t>(i * kK + i)] = 1;
  const std::vector<float> w = random_matrix(kN * kK, 3);
  std::vector<uint8_t> searched(static_cast<size_t>(kN * row_bytes(BlockType::q4_0, kK))), rounded = searched;
  encode_row_search(BlockType::q4_0, w.data(), searched.data(), kN * kK);
  ThreadPool pool(1);
  gptq_q4_0(GptqMetric(in.moments, kK, 0, pool), w.data(), kN, rounded.data(), {}, pool);
  EXPECT_LE(loss(in, w, rounded.data(), kN), 1.005 * loss(in, w, searched.data(), kN));
}

TEST(Gptq, ZerosAndDeadInputsAreHarmless) {
  constexpr int64_t kK = 64;
  ThreadPool pool(1);
  std::vector<uint8_t> out(static_cast<size_t>(2 * row_bytes(BlockType::q4_0, kK)));
  const std::vector<float> zeros(2 * kK), moments(kK * kK);
  gptq_q4_0(GptqMetric(moments, kK, 0.01, pool), zeros.data(), 2, out.data(), {}, pool);
  std::vector<float> back(2 * kK, 1.0f);
  decode_row(BlockType::q4_0, out.data(), back.data(), 2 * kK);
  EXPECT_EQ(back, zeros);
  const std::vector<float> w = random_matrix(2 * kK, 4);
  gptq_q4_0(GptqMetric(moments, kK, 0.01, pool), w.data(), 2, out.data(), {}, pool);
  decode_row(BlockType::q4_0, out.data(), back.data(), 2 * kK);
  for (size_t i = 0; i < back.size(); ++i) EXPECT_NEAR(back[i], w[i], 0.15);
}

// --- whole files ----------------------------------------------------------------------------------------------------

TEST_F(Measure, GptqIsCloserThanTheScaleSearchRotatedOrNot) {
  const TextChunks cut = chunks(random_text(600, 11));
  LoadedModel model = load(path());
  const std::string saved = dir_.file("logits.gguf");
  evaluate(model, cut, {saved, ""}, no_progress);
  for (const bool rotate : {false, true}) {
    double divergence[2];
    for (const bool gptq : {false, true}) {
      ModelQuantizeOptions options = wish("out.gguf");
      options.file.rotate = rotate;
      options.gptq = gptq;
      const ModelQuantizeResult result = quantize_model(options);
      EXPECT_EQ(result.file.n_rotated > 0, rotate);
      LoadedModel made = load(options.file.out);
      divergence[gptq] = evaluate(made, cut, {"", saved}, no_progress).kld_mean;
    }
    EXPECT_LT(divergence[1], 0.9 * divergence[0]) << rotate;
  }
}

TEST_F(Measure, BalanceDoesNotChangeWhatAModelComputes) {
  ModelQuantizeOptions options = wish("balanced.gguf");
  options.file.type = BlockType::f32;
  options.gptq = true;  // nothing is q4_0: only the balance is left of it
  options.balance = 0.5;
  quantize_model(options);
  const GgufFile before = GgufFile::open(path()), after = GgufFile::open(options.file.out);
  std::set<std::string> changed;
  for (const TensorInfo& tensor : before.tensors()) {
    const TensorInfo& other = after.tensor(tensor.name);
    if (!std::equal(tensor.data.begin(), tensor.data.end(), other.data.begin())) changed.insert(tensor.name);
  }
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.post_attention_norm.weight", "blk.0.attn_qkv.weight",
                           "blk.0.ssm_beta.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight",
                           "blk.1.attn_v.weight", "blk.1.attn_output.weight", "blk.1.attn_q.weight"}) {
    EXPECT_EQ(changed.count(name), 1u) << name;
  }
  for (const char* name :
       {"blk.0.ssm_out.weight", "output_norm.weight", "token_embd.weight", "blk.0.ssm_norm.weight"}) {
    EXPECT_EQ(changed.count(name), 0u) << name;
  }
  const std::vector<int32_t> tokens = chunks(random_text(40, 12)).evaluated(0);
  test::Runner a(path(), make_backend("cpu", kOneThread.backend)),
      b(options.file.out, make_backend("cpu", kOneThread.backend));
  const std::vector<float> x = a.run(tokens, 0, Phase::prompt), y = b.run(tokens, 0, Phase::prompt);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 2e-4) << i;
}

TEST_F(Measure, ABudgetBuysTheMostDivergencePerMultiplication) {
  ModelQuantizeOptions options = wish("listed.gguf");
  options.file.rotate = true;
  options.gptq = true;
  options.budget = 0.1;
  const ModelQuantizeResult result = quantize_model(options);
  double exact = 0, worst_kept = 1e9, best_left = 0, smallest_left = 1;
  std::set<std::string> int4;
  for (const Int4Unit& unit : result.units) {
    const double rate = unit.divergence / unit.share;
    if (unit.exact) exact += unit.share;
    if (unit.exact) worst_kept = std::min(worst_kept, rate);
    if (!unit.exact) int4.insert(unit.tensor);
  }
  for (const Int4Unit& unit : result.units) {
    if (!unit.exact) best_left = std::max(best_left, unit.divergence / unit.share);
    if (!unit.exact) smallest_left = std::min(smallest_left, unit.share);
  }
  EXPECT_GT(exact, 0);
  EXPECT_LE(exact, 0.1);
  EXPECT_TRUE(best_left <= worst_kept || exact + smallest_left > 0.1 || exact > 0.05);
  const GgufFile file = GgufFile::open(options.file.out);
  const auto listed = file.require<std::vector<std::string>>(keys::kW4a4Tensors);
  EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()), int4);
  EXPECT_EQ(hadamard_stamp(file), kHadamardBlock);
  const auto automatic = Model::open(options.file.out, W4a4::automatic), all = Model::open(options.file.out, W4a4::all);
  for (const Weight& weight : automatic->weights().all()) EXPECT_EQ(weight.prompt_int4, int4.count(weight.name) == 1);
  for (const Weight& weight : all->weights().all()) EXPECT_EQ(weight.prompt_int4, may_take_int4(weight)) << weight.name;
}

/// Sum over a tensor's input rows of the squared change of its outputs.
double output_error(Model& model, const TextChunks& chunks, const std::string& tensor, const GgufFile& made) {
  const TensorInfo &before = model.file().tensor(tensor), &after = made.tensor(tensor);
  std::vector<float> change(static_cast<size_t>(before.n_elements())), q(change.size());
  decode_row(before.type, before.data.data(), change.data(), before.n_elements());
  decode_row(after.type, after.data.data(), q.data(), after.n_elements());
  for (size_t i = 0; i < q.size(); ++i) change[i] -= q[i];
  const int64_t k = before.n_cols();
  double error = 0;
  const auto add = [&](const float* x, int64_t matrix, int64_t n_out) {
    for (int64_t o = 0; o < n_out; ++o) {
      double y = 0;
      for (int64_t i = 0; i < k; ++i)
        y += x[i] * static_cast<double>(change[static_cast<size_t>((matrix * n_out + o) * k + i)]);
      error += y * y;
    }
  };
  BlockWalk walk(model, chunks, kOneThread);
  walk.run(
      [&](const InputGroup& group, const InputRows& rows) {
        for (const Weight* weight : group.matrices) {
          if (weight->name != tensor) continue;
          for (size_t i = 0; i < rows.ids.size(); ++i) {
            const size_t row = i / static_cast<size_t>(rows.multiple == 1 ? group.n_used : 1);
            add(rows.x.data() + row * static_cast<size_t>(k), rows.ids[i], weight->n_out());
          }
          for (int64_t r = 0; rows.ids.empty() && r < rows.n_row; ++r) add(rows.x.data() + r * k, 0, weight->n_out());
        }
      },
      no_stop);
  return error;
}

TEST(Calibration, ExpertsAreRoundedByTheirOwnRows) {
  test::TempDir dir;
  ConvertOptions convert_options;
  convert_options.in = ONEBIT_SOURCE_DIR "/tests/golden/tiny/qwen3_5_moe";
  convert_options.out = dir.file("model.gguf");
  convert_options.type = BlockType::f32;
  convert(convert_options);
  Model model(GgufFile::open(convert_options.out), W4a4::none);
  Rng rng(8);
  TextChunks chunks{64, {}, -1};
  for (int i = 0; i < 64 * 24; ++i) {
    chunks.tokens.push_back(static_cast<int32_t>(rng.uniform() * static_cast<double>(model.config().n_vocab)));
  }
  CalibrationOptions calibration;
  calibration.measure = kOneThread;
  calibration.stop = no_stop;
  Calibration encoder(model, chunks, calibration);
  QuantizeOptions options;
  options.in = convert_options.out;
  options.out = dir.file("search.gguf");
  quantize(options);
  options.out = dir.file("gptq.gguf");
  options.encoder = &encoder;
  quantize(options);
  const GgufFile search = GgufFile::open(dir.file("search.gguf")), gptq = GgufFile::open(dir.file("gptq.gguf"));
  for (const char* tensor : {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight",
                             "blk.0.ffn_gate_shexp.weight", "blk.0.ffn_down_shexp.weight"}) {
    EXPECT_LT(output_error(model, chunks, tensor, gptq), 0.97 * output_error(model, chunks, tensor, search)) << tensor;
  }
  options.out = dir.file("rotated.gguf");
  options.rotate = true;
  Calibration again(model, chunks, calibration);
  options.encoder = &again;
  quantize(options);
  const GgufFile rotated = GgufFile::open(options.out);
  EXPECT_TRUE(is_rotated(rotated.tensor("blk.0.ffn_down_exps.weight"), hadamard_stamp(rotated)));
  EXPECT_TRUE(is_rotated(rotated.tensor("blk.0.ffn_up_shexp.weight"), hadamard_stamp(rotated)));
}

TEST_F(Measure, ARotatedFileCanBeListedAgain) {
  ModelQuantizeOptions options = wish("rotated.gguf");
  options.file.rotate = true;
  quantize_model(options);
  options.file.in = options.file.out;
  options.budget = 0.1;
  test::expect_error(ErrorKind::usage, {"another file"}, [&] { quantize_model(options); });
  options.file.out = dir_.file("listed.gguf");
  const ModelQuantizeResult result = quantize_model(options);
  const GgufFile before = GgufFile::open(options.file.in), after = GgufFile::open(options.file.out);
  EXPECT_EQ(after.require<std::vector<std::string>>(keys::kW4a4Tensors), *result.file.int4_tensors);
  EXPECT_LT(result.file.int4_tensors->size(), result.units.size());
  for (const TensorInfo& tensor : before.tensors()) {
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), after.tensor(tensor.name).data.begin()));
  }
  options.gptq = true;
  test::expect_refused({"rotated.gguf", "Hadamard-rotated already"}, [&] { quantize_model(options); });
  options.gptq = false;
  options.file.in = path();
  options.file.rotate = false;
  test::expect_error(ErrorKind::usage, {"--hadamard"}, [&] { quantize_model(options); });
}

TEST_F(Measure, InterruptedQuantisationLeavesNothing) {
  for (int after : {1, 30}) {
    ModelQuantizeOptions options = wish("out.gguf");
    options.file.rotate = true;
    options.gptq = true;
    options.budget = 0.1;
    int calls = 0;
    options.stop = [&] {
      if (++calls > after) fail(ErrorKind::runtime, "interrupted");
    };
    test::expect_error(ErrorKind::runtime, {"interrupted"}, [&] { quantize_model(options); });
    EXPECT_EQ(dir_.count(), 2u);
  }
  ModelQuantizeOptions options = wish("out.gguf");
  options.file.rotate = true;
  options.budget = 0.1;
  options.on_budget = [](double) { fail(ErrorKind::runtime, "interrupted"); };
  test::expect_error(ErrorKind::runtime, {"interrupted"}, [&] { quantize_model(options); });
  EXPECT_EQ(dir_.count(), 2u);
}

}  // namespace
}  // namespace onebit
