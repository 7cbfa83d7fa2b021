// Every architecture against Hugging Face: tiny random models are converted from their directories and must give the
// reference logits, hidden states and greedy text, in one pass and token by token, on every device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "convert/convert.h"
#include "engine/sampler.h"
#include "support/devices.h"
#include "support/runner.h"
#include "support/temp_dir.h"

namespace onebit::test {
namespace {

using Json = nlohmann::json;

/// f32 on both sides: the reference itself moves by 1e-5 between one pass and token by token.
constexpr double kLogitTolerance = 1e-4;

struct Case {
  std::string model;
  Device device;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model : {"qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "llama"}) {
    for (const Device& device : test_devices()) cases.push_back({model, device});
  }
  return cases;
}

double largest_difference(std::span<const float> actual, const Json& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    const double difference = std::abs(actual[i] - expected[i].get<double>());
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

class TinyGolden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string folder = ONEBIT_SOURCE_DIR "/tests/golden/tiny/" + GetParam().model;
    golden_ = Json::parse(std::ifstream(folder + "/golden.json"));
    ConvertOptions options;
    options.in = folder;
    options.out = dir_.file("model.gguf");
    options.type = BlockType::f32;
    convert(options);
    runner_ = std::make_unique<Runner>(options.out, GetParam().device.make(), true);
    tokens_ = golden_["tokens"].get<std::vector<int32_t>>();
    n_prompt_ = golden_["prompt_len"].get<size_t>();
  }
  std::span<const float> row(const std::vector<float>& logits, size_t i) const {
    const auto n = static_cast<size_t>(runner_->n_vocab());
    return std::span(logits).subspan(i * n, n);
  }

  TempDir dir_;
  Json golden_;
  std::unique_ptr<Runner> runner_;
  std::vector<int32_t> tokens_;
  size_t n_prompt_ = 0;
};

TEST_P(TinyGolden, OnePass) {
  const std::vector<float> logits = runner_->run(tokens_, 0, Phase::prompt);
  const Json& positions = golden_["prefill_logits_positions"];
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_LT(largest_difference(row(logits, positions[i].get<size_t>()), golden_["prefill_logits"][i]),
              kLogitTolerance);
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    EXPECT_EQ(argmax_of(row(logits, i)), golden_["prefill_argmax"][i].get<int32_t>()) << "position " << i;
  }
  const std::vector<float> hidden = runner_->taps(static_cast<int32_t>(tokens_.size()) - 1);
  const auto n_embd = static_cast<size_t>(runner_->model().config().n_embd);
  // The reference's last entry is taken after the final norm, so the last block's own output is not in it.
  for (size_t block = 0; block + 1 < hidden.size() / n_embd; ++block) {
    const Json& expected = golden_["hidden_last_token"][block + 1];
    EXPECT_LT(largest_difference(std::span(hidden).subspan(block * n_embd, n_embd), expected), kLogitTolerance)
        << "after block " << block + 1;
  }
}

TEST_P(TinyGolden, TokenByToken) {
  const std::span<const int32_t> tokens = tokens_;
  std::vector<float> logits = runner_->run(tokens.first(n_prompt_), 0, Phase::prompt);
  const Json& positions = golden_["decode_logits_positions"];
  size_t checked = 0;
  for (size_t pos = n_prompt_; pos < tokens_.size(); ++pos) {
    logits = runner_->run(tokens.subspan(pos, 1), static_cast<int64_t>(pos), Phase::decode);
    if (checked == positions.size() || positions[checked].get<size_t>() != pos) continue;
    EXPECT_LT(largest_difference(logits, golden_["decode_logits"][checked]), kLogitTolerance) << "position " << pos;
    ++checked;
  }
  EXPECT_EQ(checked, positions.size());
}

TEST_P(TinyGolden, GreedyText) {
  const std::span<const int32_t> tokens = tokens_;
  std::vector<float> logits = runner_->run(tokens.first(n_prompt_), 0, Phase::prompt);
  std::vector<int32_t> text = {argmax_of(row(logits, n_prompt_ - 1))};
  while (text.size() < golden_["greedy"].size()) {
    const auto pos = static_cast<int64_t>(n_prompt_ + text.size() - 1);
    logits = runner_->run(std::span(text).last(1), pos, Phase::decode);
    text.push_back(argmax_of(logits));
  }
  EXPECT_EQ(text, golden_["greedy"].get<std::vector<int32_t>>());
}

/// Verified rows that are thrown away, some of them kept, must leave no trace.
TEST_P(TinyGolden, VerifiedAndRolledBack) {
  const std::span<const int32_t> tokens = tokens_;
  runner_->run(tokens.first(n_prompt_), 0, Phase::prompt);
  std::vector<float> logits;
  size_t pos = n_prompt_;
  int32_t n_commit = 0;
  while (pos < tokens_.size()) {
    const size_t n_kept = std::min<size_t>(1 + pos % 3, tokens_.size() - pos);
    std::vector<int32_t> rows(tokens.begin() + static_cast<int64_t>(pos),
                              tokens.begin() + static_cast<int64_t>(pos + n_kept));
    while (rows.size() < 5) rows.push_back(7);  // drafts that will not be accepted
    logits = runner_->run(rows, static_cast<int64_t>(pos), Phase::verify, n_commit);
    n_commit = static_cast<int32_t>(n_kept);
    pos += n_kept;
  }
  const size_t last = static_cast<size_t>(n_commit) - 1;
  EXPECT_LT(largest_difference(row(logits, last), golden_["decode_logits"].back()), kLogitTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, TinyGolden, testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.model + "_" + test.param.device.label(); });

}  // namespace
}  // namespace onebit::test
