// The demo pair of models/ against float32 results of its own stored weights (tests/golden/demo, made by
// tools/goldens/demo.py with the training code): logits, drafts, greedy text and how many drafts each round keeps.
//
// The engine rounds activations to 8 bits, so its logits stray by about 1 % of their spread. Where the two best are
// closer than that in the reference, texts may part; up to there they must be equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "convert/safetensors.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "support/devices.h"
#include "support/draft_runner.h"
#include "support/runner.h"

namespace onebit::test {
namespace {

using Json = nlohmann::json;

const std::string kTarget = ONEBIT_SOURCE_DIR "/models/demo-H32.gguf";
const std::string kDrafter = ONEBIT_SOURCE_DIR "/models/demo-dflash2.gguf";
const std::string kGoldens = ONEBIT_SOURCE_DIR "/tests/golden/demo";

constexpr double kLogitError = 0.06;  // root mean square over the reference's standard deviation
constexpr double kNearTie = 0.35;     // difference of two logits that 8-bit activations can turn round
constexpr double kMeanTokensPerStep = 5.0;

Json read_json(const std::string& name) { return Json::parse(std::ifstream(kGoldens + "/" + name)); }

std::span<const float> floats(const Checkpoint& goldens, const std::string& name) {
  const HfTensor* tensor = goldens.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  return {reinterpret_cast<const float*>(tensor->data.data()), tensor->data.size() / 4};
}

/// Root mean square difference over the standard deviation of `expected`.
double relative_error(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double mean = 0, square = 0, difference = 0;
  for (float x : expected) mean += x / static_cast<double>(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    square += (expected[i] - mean) * (expected[i] - mean);
    difference += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
  }
  return std::sqrt(difference / square);
}

TEST(DemoGolden, LogitsAndDrafts) {
  const Checkpoint goldens = Checkpoint::open(kGoldens);
  const auto target = Model::open(kTarget, W4a4::none);
  DraftRunner runner(kDrafter, *target, make_backend("cpu", {.n_threads = 1, .isa = {}}), 1024);
  size_t n_equal = 0, n_drafts = 0;
  for (const Json& prompt : read_json("golden.json")) {
    const auto name = prompt["name"].get<std::string>();
    auto tokens = prompt["prompt"].get<std::vector<int32_t>>();
    const size_t n_prompt = tokens.size();
    for (const Json& id : prompt["greedy64"]) tokens.push_back(id.get<int32_t>());
    const std::vector<float> logits = runner.read_prompt(std::span(tokens).first(n_prompt));
    EXPECT_LT(relative_error(logits, floats(goldens, name + ".logits_last_prompt")), kLogitError) << name;
    EXPECT_LT(relative_error(runner.read_prompt(tokens), floats(goldens, name + ".logits_last")), kLogitError) << name;
    for (const Json& proposal : prompt["proposals"]) {
      const auto n = proposal["committed"].get<size_t>();
      runner.read_prompt(std::span(tokens).first(n));
      const DraftedBlock block = runner.draft(proposal["anchor"].get<int32_t>(), static_cast<int64_t>(n));
      const auto walk = proposal["walk"].get<std::vector<int32_t>>();
      const auto scores = floats(goldens, name + ".draft_scores_" + std::to_string(n));
      const size_t k = scores.size() / walk.size();
      const size_t parts =
          static_cast<size_t>(std::mismatch(walk.begin(), walk.end(), block.ids.begin()).first - walk.begin());
      n_drafts += walk.size();
      n_equal += parts;
      if (parts == walk.size()) continue;
      std::vector<float> row(scores.begin() + static_cast<int64_t>(parts * k),
                             scores.begin() + static_cast<int64_t>((parts + 1) * k));
      std::sort(row.rbegin(), row.rend());
      EXPECT_LT(row[0] - row[1], 2 * kNearTie)
          << name << " at " << n << ": drafts part at " << parts << " without a near-tie";
    }
  }
  EXPECT_GT(static_cast<double>(n_equal), 0.7 * static_cast<double>(n_drafts));
}

struct Answer : Listener {
  std::vector<int32_t> ids;
  Statistics statistics;
  bool done = false;

  bool on_token(const TokenEvent& event) override {
    ids.push_back(event.id);
    return true;
  }
  void on_finish(FinishReason, const Statistics& s, const std::string&) override {
    statistics = s;
    done = true;
  }
};

std::vector<std::shared_ptr<Answer>> answers(const Json& prompts, const std::string& drafter, W4a4 w4a4) {
  EngineOptions options;
  options.model_path = kTarget;
  options.drafter_path = drafter;
  options.n_ctx = 2304;  // the long prompt and its answer
  options.w4a4 = w4a4;
  options.draft_adaptive = false;  // whole blocks, as in the reference
  options.device = "cpu";
  options.backend.n_threads = 1;  // a shared machine runs this well, two threads would wait for each other
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  std::vector<std::shared_ptr<Answer>> all;
  for (const Json& prompt : prompts) {
    Request request;
    request.prompt = prompt["prompt"].get<std::vector<int32_t>>();
    request.max_tokens = 256;
    request.stop_ids = {16376, 16378};
    request.reuse_prefix = false;
    all.push_back(std::make_shared<Answer>());
    scheduler.submit(request, all.back());
    while (!all.back()->done) scheduler.step();
  }
  return all;
}

/// Rounds with equal counts before the first difference; the last round, cut by the token limit, is left out.
size_t equal_rounds(const std::vector<int32_t>& ours, const std::vector<int32_t>& golden) {
  const size_t n = std::min(ours.size(), golden.size());
  return static_cast<size_t>(std::mismatch(ours.begin(), ours.begin() + static_cast<int64_t>(n), golden.begin()).first -
                             ours.begin());
}

TEST(DemoGolden, GreedyTextAndAcceptance) {
  const Json prompts = read_json("acceptance.json");
  const auto drafted = answers(prompts, kDrafter, W4a4::none), plain = answers(prompts, "", W4a4::none);
  double tokens_per_step = 0, golden_tokens_per_step = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto name = prompts[i]["name"].get<std::string>();
    const auto text = prompts[i]["greedy"].get<std::vector<int32_t>>();
    const auto gaps = prompts[i]["top2_gap"].get<std::vector<double>>();
    EXPECT_EQ(plain[i]->ids, drafted[i]->ids) << name;
    const auto& ids = drafted[i]->ids;
    const size_t n = std::min(text.size(), ids.size());
    const auto parts = static_cast<size_t>(
        std::mismatch(text.begin(), text.begin() + static_cast<int64_t>(n), ids.begin()).first - text.begin());
    const bool whole = parts == n && text.size() <= ids.size() + 1;  // the golden text ends with its stop token
    if (!whole) {
      EXPECT_LT(gaps[parts], kNearTie) << name << " parts at token " << parts << " without a near-tie";
    }
    const auto golden = prompts[i]["selector"]["accepted"].get<std::vector<int32_t>>();
    const size_t rounds = equal_rounds(drafted[i]->statistics.accepted_per_round, golden);
    const double mine = drafted[i]->statistics.tokens_per_step();
    const auto theirs = prompts[i]["selector"]["tokens_per_step"].get<double>();
    std::printf(
        "%-16s text equal for %3zu of %3zu tokens%s, rounds %2zu of %2zu, tokens/step %5.2f (reference %5.2f)\n",
        name.c_str(), parts, text.size(), whole ? "" : " (near-tie)", rounds, golden.size(), mine, theirs);
    tokens_per_step += mine / static_cast<double>(prompts.size());
    golden_tokens_per_step += theirs / static_cast<double>(prompts.size());
  }
  std::printf("mean tokens/step %.2f (reference %.2f)\n", tokens_per_step, golden_tokens_per_step);
  EXPECT_GE(tokens_per_step, kMeanTokensPerStep);
  EXPECT_NEAR(tokens_per_step, golden_tokens_per_step, 0.15 * golden_tokens_per_step);
}

/// Prompts read with 4-bit activations: still the same text with and without the drafter.
TEST(DemoGolden, W4a4PromptsDoNotChangeWhatDraftingPromises) {
  Json prompts = read_json("acceptance.json");
  prompts.erase(prompts.begin() + 8, prompts.end());
  const auto drafted = answers(prompts, kDrafter, W4a4::automatic), plain = answers(prompts, "", W4a4::automatic);
  double tokens_per_step = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(plain[i]->ids, drafted[i]->ids) << prompts[i]["name"];
    tokens_per_step += drafted[i]->statistics.tokens_per_step() / static_cast<double>(prompts.size());
  }
  EXPECT_GE(tokens_per_step, kMeanTokensPerStep);
}

/// Along the reference's text, on every device, each token is the most likely one, but for near-ties.
TEST(DemoGolden, EveryDeviceAgreesTokenByToken) {
  const Json prompts = read_json("acceptance.json");
  for (const Device& device : test_devices()) {
    if (device.name == "ref") continue;  // too slow for whole texts
    Runner runner(kTarget, device.make(), false, W4a4::none);
    size_t n = 0, n_equal = 0;
    double widest = 0;
    for (const Json& prompt : prompts) {
      auto tokens = prompt["prompt"].get<std::vector<int32_t>>();
      const auto text = prompt["greedy"].get<std::vector<int32_t>>();
      const size_t n_prompt = tokens.size();
      tokens.insert(tokens.end(), text.begin(), text.end());
      if (tokens.size() > 512) continue;  // the long prompt
      runner.clear();
      const std::vector<float> logits = runner.run(tokens, 0, Phase::decode);
      const auto n_vocab = static_cast<size_t>(runner.n_vocab());
      for (size_t i = 0; i < text.size(); ++i, ++n) {
        const int32_t best = argmax_of(std::span(logits).subspan((n_prompt + i - 1) * n_vocab, n_vocab));
        if (best == text[i]) {
          ++n_equal;
          continue;
        }
        const double gap = prompt["top2_gap"][i].get<double>();
        widest = std::max(widest, gap);
        EXPECT_LT(gap, kNearTie) << device.label() << " " << prompt["name"] << " token " << i;
      }
    }
    std::printf("%s: %zu of %zu tokens equal, the others where the two best differ by at most %.3f\n",
                device.label().c_str(), n_equal, n, widest);
    EXPECT_GT(n, 2000u);
    EXPECT_GT(static_cast<double>(n_equal), 0.97 * static_cast<double>(n)) << device.label();
  }
}

}  // namespace
}  // namespace onebit::test
