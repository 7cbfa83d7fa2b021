// Quantising by second moments of inputs: rounding, balance, the list of matrices that keep 8-bit activations, moments
// from a file, and what failures leave behind.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "gguf/blocks.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"
#include "gguf/writer.h"
#include "measure/calibration.h"
#include "measure/gptq.h"
#include "measure/hessian_file.h"
#include "support/expect_error.h"
#include "support/full_disk.h"
#include "support/measure_rig.h"
#include "support/runner.h"

namespace onebit {
namespace {

using test::kOneThread, test::no_progress, test::no_stop, test::random_text;
using Measure = test::Measure;

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
  Moments moments = Moments::none(k, 1);
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
  const std::string path = test::write_golden_model(dir, "qwen3_5_moe");
  Model model(GgufFile::open(path), W4a4::none);
  Rng rng(8);
  TextChunks chunks{64, {}, -1};
  for (int i = 0; i < 64 * 24; ++i) {
    chunks.tokens.push_back(static_cast<int32_t>(rng.uniform() * static_cast<double>(model.config().n_vocab)));
  }
  CalibrationOptions calibration;
  calibration.threads = 1;
  calibration.stop = no_stop;
  TextMoments moments(model, chunks, kOneThread, no_stop);
  Calibration encoder(model.file(), moments, calibration);
  QuantizeOptions options;
  options.in = path;
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
  TextMoments moments_again(model, chunks, kOneThread, no_stop);
  Calibration again(model.file(), moments_again, calibration);
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
  EXPECT_EQ(after.require<std::vector<std::string>>(keys::kW4a4Tensors), result.file.int4->tensors);
  EXPECT_LT(result.file.int4->tensors.size(), result.units.size());
  for (const TensorInfo& tensor : before.tensors()) {
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), after.tensor(tensor.name).data.begin()));
  }
  // What was measured serves other budgets without a text.
  ModelQuantizeOptions again = options;
  again.text.clear();
  again.text_name.clear();
  again.file.in = dir_.file("listed.gguf");
  again.file.out = dir_.file("again.gguf");
  const ModelQuantizeResult same = quantize_model(again);
  EXPECT_EQ(same.file.int4->tensors, result.file.int4->tensors);
  EXPECT_EQ(test::read_file(again.file.out), test::read_file(again.file.in));
  again.budget = 0.3;
  EXPECT_LT(quantize_model(again).file.int4->tensors.size(), result.file.int4->tensors.size());
  again.file.in = dir_.file("rotated.gguf");
  test::expect_refused({"rotated.gguf", "measured earlier", "-f"}, [&] { quantize_model(again); });
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

TEST_F(Measure, AFullDiskLeavesNothing) {
  ModelQuantizeOptions options = wish("out.gguf");
  options.file.rotate = true;
  options.gptq = true;
  quantize_model(options);
  const auto whole = static_cast<rlim_t>(std::filesystem::file_size(options.file.out));
  std::filesystem::remove(options.file.out);
  options.budget = 0.1;  // the second copy has a list more than the first
  for (const rlim_t limit : {whole / 2, whole}) {
    const std::string message = test::error_on_full_disk(limit, [&] { quantize_model(options); });
    EXPECT_NE(message.find("out.gguf"), std::string::npos) << message;
    EXPECT_NE(message.find("full"), std::string::npos) << message;
    EXPECT_EQ(dir_.count(), 2u);
  }
  const TextChunks cut = chunks(random_text(200, 2));
  const std::string message = test::error_on_full_disk(4096, [&] {
    LoadedModel model = load(path());
    evaluate(model, cut, {dir_.file("logits.gguf"), ""}, no_progress);
  });
  EXPECT_NE(message.find("logits.gguf"), std::string::npos) << message;
  EXPECT_NE(message.find("full"), std::string::npos) << message;
  EXPECT_EQ(dir_.count(), 2u);
}

/// The model without one tensor.
void drop_tensor(const std::string& from, const std::string& to, const std::string& name) {
  const GgufFile file = GgufFile::open(from);
  GgufWriter writer(to);
  for (const MetaEntry& entry : file.metadata()) writer.add(entry.key, entry.value);
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name != name) writer.declare(tensor.name, tensor.type, tensor.shape);
  }
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name != name) writer.write(tensor.name, tensor.data);
  }
  writer.finish();
}

TEST_F(Measure, ModelsThatCantBeRunAreRefused) {
  ModelQuantizeOptions options = wish("out.gguf");
  options.file.rotate = true;
  options.gptq = true;
  options.file.in = dir_.file("part.gguf");
  for (const char* name : {"blk.1.ffn_up.weight", "blk.0.attn_qkv.weight", "token_embd.weight"}) {
    drop_tensor(path(), options.file.in, name);
    test::expect_refused({"part.gguf", name}, [&] { quantize_model(options); });
  }
  std::filesystem::remove(options.file.in);
  EXPECT_EQ(dir_.count(), 2u);
}

TEST(QuantizeModel, RowsThatCantBeRotatedAreRefused) {
  test::TempDir dir;
  test::TinyShape shape;
  shape.n_ff = 80;
  test::write_tiny_text_model(dir.file("narrow.gguf"), shape);
  ModelQuantizeOptions options;
  options.file.in = dir.file("narrow.gguf");
  options.file.out = dir.file("out.gguf");
  options.file.rotate = true;
  options.measure = kOneThread;
  options.text = random_text(40 * 32, 3);
  options.text_name = "text";
  options.n_ctx = 32;
  options.stop = no_stop;
  for (const bool gptq : {false, true}) {
    options.gptq = gptq;
    test::expect_refused({"narrow.gguf", "ffn_down.weight", "multiple of 32"}, [&] { quantize_model(options); });
    EXPECT_EQ(dir.count(), 2u);
  }
  options.file.rotate = false;  // then such matrices are f16, beside the rounded ones
  quantize_model(options);
  EXPECT_EQ(GgufFile::open(options.file.out).tensor("blk.0.ffn_down.weight").type, BlockType::f16);
}

}  // namespace
}  // namespace onebit
