// The demo pair and its drafters as they are used, lengths chosen by the engine: the same text and the same seeds with
// and without, whoever shares the batch; and the check that a server makes when it starts.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/drafter_check.h"
#include "engine/scheduler.h"
#include "engine/text_model.h"
#include "gguf/blocks.h"
#include "gguf/hadamard.h"
#include "gguf/keys.h"
#include "gguf/writer.h"
#include "support/temp_dir.h"

namespace onebit::test {
namespace {

const std::string kTarget = ONEBIT_SOURCE_DIR "/models/demo-H32.gguf";
const std::string kDrafter = ONEBIT_SOURCE_DIR "/models/demo-dflash2.gguf";

struct Answer : Listener {
  std::vector<int32_t> ids;
  Statistics statistics;

  bool on_token(const TokenEvent& event) override {
    ids.push_back(event.id);
    return true;
  }
  void on_finish(FinishReason, const Statistics& s, const std::string&) override { statistics = s; }
};

EngineOptions options_with(const std::string& drafter) {
  EngineOptions options;
  options.model_path = kTarget;
  options.drafter_path = drafter;
  options.n_ctx = 512;
  options.lookup = !drafter.empty();
  options.backend.n_threads = 1;
  return options;
}

/// Pieces of this repository's texts as prompts.
std::vector<std::vector<int32_t>> cut_prompts(size_t n_prompt) {
  std::string text;
  for (const char* name : {"README.md", "docs/server.md", "docs/gguf.md", "docs/tokenizer.md",
                           "src/engine/scheduler.cpp", "src/text/tokenizer.cpp", "models/bench/long.txt"}) {
    std::ifstream file(std::string(ONEBIT_SOURCE_DIR "/") + name);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  const std::vector<int32_t> ids = read_text_model(GgufFile::open(kTarget)).tokenizer.encode(text, ParseSpecial::no);
  std::vector<std::vector<int32_t>> prompts;
  const size_t step = ids.size() / (n_prompt + 1);
  for (size_t i = 0; i < n_prompt; ++i) {
    const auto at = ids.begin() + static_cast<int64_t>(i * step);
    prompts.emplace_back(at, at + 8 + static_cast<int64_t>(i % 25));
  }
  return prompts;
}

std::vector<std::shared_ptr<Answer>> answers(const std::vector<std::vector<int32_t>>& prompts,
                                             const std::string& drafter) {
  EngineOptions options = options_with(drafter);
  options.n_slots = 3;  // several in a batch, drafting different lengths
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  std::vector<std::shared_ptr<Answer>> all;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i];
    request.max_tokens = 24;
    request.sampling.temperature = i % 4 == 3 ? 0.8f : 0;
    request.sampling.seed = i;
    request.reuse_prefix = false;
    all.push_back(std::make_shared<Answer>());
    scheduler.submit(request, all.back());
  }
  while (scheduler.step()) {
  }
  return all;
}

TEST(DemoDrafting, TwoHundredPromptsWithAndWithoutDrafters) {
  const auto prompts = cut_prompts(200);
  const auto plain = answers(prompts, "");
  for (const std::string& drafter : {kDrafter, kTarget}) {  // the target's file holds a multi-token head
    const auto drafted = answers(prompts, drafter);
    int64_t n_rounds = 0, n_accepted = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(plain[i]->ids, drafted[i]->ids) << "prompt " << i << " with " << drafter;
      n_rounds += drafted[i]->statistics.rounds;
      n_accepted += drafted[i]->statistics.draft_n_accepted;
    }
    EXPECT_GT(n_rounds, 100) << drafter;
    EXPECT_GT(n_accepted, 200) << drafter;
    std::printf("%s: %d drafts kept in %d rounds\n", drafter.c_str(), static_cast<int>(n_accepted),
                static_cast<int>(n_rounds));
  }
}

// --- lengths by counted costs ----------------------------------------------------------------------------------------

/// What passes cost, in steps: about that of this pair on a server processor, but always the same.
StepCosts counted_costs() {
  StepCosts costs;
  costs.target = CostCurve({{1, 1.0}, {16, 3.3}});
  costs.draft = CostCurve({{2, 0.53}, {16, 2.07}});
  costs.encode = CostCurve({{1, 0.05}, {64, 0.5}});
  costs.fixed = true;
  return costs;
}

struct Prompt {
  std::string kind;
  std::vector<int32_t> ids;
};

std::vector<Prompt> bench_prompts() {
  const Tokenizer tokenizer = read_text_model(GgufFile::open(kTarget)).tokenizer;
  std::vector<Prompt> all;
  for (const char* name : {"prompts", "held-out"}) {  // those that the choice was made with, and others
    std::ifstream file(ONEBIT_SOURCE_DIR "/models/bench/" + std::string(name) + ".json");
    for (const auto& p : nlohmann::json::parse(file)) {
      if (p["kind"] == "long") continue;
      all.push_back({p["kind"], tokenizer.encode(p["text"].get<std::string>(), ParseSpecial::yes)});
    }
  }
  return all;
}

/// What answers of each kind cost, in plain steps; reading a token of a prompt costs a tenth of one.
std::map<std::string, double> costs_of(Scheduler& scheduler, const std::vector<Prompt>& prompts, float temperature,
                                       std::optional<int32_t> length) {
  std::map<std::string, double> sums;
  for (const Prompt& prompt : prompts) {
    Request request;
    request.prompt = prompt.ids;
    request.max_tokens = 128;
    request.stop_ids = {16376, 16378};
    request.sampling.temperature = temperature;
    request.sampling.seed = 7;
    request.draft_max = length;
    request.reuse_prefix = false;
    const auto answer = std::make_shared<Answer>();
    scheduler.submit(request, answer);
    while (scheduler.step()) {
    }
    sums[prompt.kind] += answer->statistics.plain_steps_worth + 0.1 * static_cast<double>(prompt.ids.size());
  }
  return sums;
}

TEST(DemoDrafting, ChosenLengthsCostNoMoreThanTheBestFixedOne) {
  const std::vector<Prompt> prompts = bench_prompts();
  EngineOptions options = options_with(kDrafter);
  options.costs = counted_costs();
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  for (const float temperature : {0.0f, 0.7f}) {
    const auto chosen = costs_of(scheduler, prompts, temperature, std::nullopt);
    std::map<std::string, double> best = costs_of(scheduler, prompts, temperature, 0);
    for (const int32_t length : {3, 7, 15}) {
      for (const auto& [kind, cost] : costs_of(scheduler, prompts, temperature, length)) {
        best[kind] = std::min(best[kind], cost);
      }
    }
    for (const auto& [kind, cost] : chosen) {
      std::printf("T = %.1f, %s: %.2f of the best\n", static_cast<double>(temperature), kind.c_str(),
                  cost / best[kind]);
      EXPECT_LE(cost, best[kind] / 0.97) << kind << " at " << temperature;
    }
  }
}

// --- the check at start ----------------------------------------------------------------------------------------------

DrafterCheck check(const std::string& drafter, TapShift at = {}) {
  EngineOptions options = options_with(drafter);
  options.costs = counted_costs();
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  const Tokenizer tokenizer = read_text_model(GgufFile::open(kTarget)).tokenizer;
  const DrafterCheck check = scheduler.check_drafter(tokenizer.encode(kDrafterCheckText, ParseSpecial::no), at);
  for (const DrafterCheck::Trial& trial : check.trials) {
    std::printf("blocks %+d, positions %+d: %.2f tokens accepted\n", static_cast<int>(trial.shift.blocks),
                static_cast<int>(trial.shift.positions), trial.mean());
  }
  std::printf("%s\n", check.warning().c_str());
  // The scheduler works as if nothing had been tried.
  const std::vector<int32_t> prompt = cut_prompts(3)[1];
  Request request;
  request.prompt = prompt;
  request.max_tokens = 24;
  const auto after = std::make_shared<Answer>();
  scheduler.submit(request, after);
  while (scheduler.step()) {
  }
  EXPECT_EQ(after->ids, answers({prompt}, "")[0]->ids);
  return check;
}

void as_it_is(const GgufFile&, GgufWriter&) {}

/// A copy of a drafter with other metadata, or with one tensor's rows altered.
std::string changed_drafter(const TempDir& dir, const std::function<void(const GgufFile&, GgufWriter&)>& change,
                            const std::string& altered = "",
                            const std::function<void(std::vector<float>&)>& alter = {}) {
  const GgufFile file = GgufFile::open(kDrafter);
  const std::string path = dir.file("changed.gguf");
  GgufWriter out(path);
  for (const MetaEntry& entry : file.metadata()) out.add(entry.key, entry.value);
  change(file, out);
  for (const TensorInfo& t : file.tensors()) out.declare(t.name, t.type, t.shape);
  for (const TensorInfo& t : file.tensors()) {
    std::vector<uint8_t> bytes(t.data.begin(), t.data.end());
    if (t.name == altered) {
      const int64_t n = t.shape.back();
      std::vector<float> row(static_cast<size_t>(n));
      for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(row_bytes(t.type, n))) {
        decode_row(t.type, bytes.data() + at, row.data(), n);
        alter(row);
        encode_row(t.type, row.data(), bytes.data() + at, n);
      }
    }
    out.write(t.name, bytes);
  }
  out.finish();
  return path;
}

TEST(DrafterCheck, ARightPairIsNotDoubted) {
  EXPECT_EQ(check(kDrafter).warning(), "");
  EXPECT_EQ(check(kTarget).warning(), "");  // its multi-token head
}

/// The session at its end keeps less of the drafter's rows than the drafts before it see.
TEST(DrafterCheck, ADrafterOfASmallWindowSeesWhatItMay) {
  const TempDir dir;
  const std::string path = changed_drafter(dir, [](const GgufFile& file, GgufWriter& out) {
    out.add(keys::sliding_window(file.require<std::string>(keys::kArchitecture)), uint32_t{32});
  });
  EXPECT_GT(check(path).trials.front().mean(), 3);  // 3.46; with the whole window 6.36
}

TEST(DrafterCheck, HiddenStatesOfTheWrongPositionAreNoticed) {
  EXPECT_NE(check(kDrafter, {.positions = 1}).warning().find("position before"), std::string::npos);
  EXPECT_NE(check(kDrafter, {.positions = -1}).warning().find("position after"), std::string::npos);
  // (The other way can't be: the state of the position after is not computed yet when a multi-token head drafts. It
  // would do as well with it, 0.85 tokens instead of 0.92.)
  EXPECT_NE(check(kTarget, {.positions = -1}).warning().find("position after"), std::string::npos);
}

TEST(DrafterCheck, HiddenStatesOfTheWrongBlocksAreNoticed) {
  const TempDir dir;
  for (const int32_t by : {-1, 1}) {
    const std::string path = changed_drafter(dir, [&](const GgufFile& file, GgufWriter& out) {
      auto blocks = file.require<std::vector<int32_t>>(keys::kDflashTargetLayers);
      for (int32_t& block : blocks) block += by;
      out.add(keys::kDflashTargetLayers, blocks);
    });
    const std::string warning = check(path).warning();
    EXPECT_NE(warning.find(by < 0 ? "block after" : "block before"), std::string::npos) << warning;
  }
}

/// Another target of the same shape has other hidden states; so here the drafter reads ours in another order.
TEST(DrafterCheck, ADrafterOfAnotherTargetIsNoticed) {
  const TempDir dir;
  const auto reverse = [](std::vector<float>& row) { std::reverse(row.begin(), row.end()); };
  const std::string warning = check(changed_drafter(dir, as_it_is, keys::kFc, reverse)).warning();
  EXPECT_NE(warning.find("was it made for this model?"), std::string::npos) << warning;
}

TEST(DrafterCheck, AWrongBasisIsNoticed) {
  const TempDir dir;
  const auto rotate = [](std::vector<float>& row) { hadamard32(row.data(), static_cast<int64_t>(row.size())); };
  for (const char* name : {keys::kFc, "blk.0.attn_output.weight"}) {
    EXPECT_NE(check(changed_drafter(dir, as_it_is, name, rotate)).warning(), "") << name;
  }
}

}  // namespace
}  // namespace onebit::test
