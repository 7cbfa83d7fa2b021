// The demo pair and its drafters as they are used, lengths chosen by the engine: the same text and the same seeds with
// and without, whoever shares the batch; and the check that a server makes when it starts.
#include <gtest/gtest.h>

#include <fstream>

#include "engine/drafter_check.h"
#include "engine/scheduler.h"
#include "engine/text_model.h"

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

TEST(DemoDrafting, TheCheckKnowsAGoodDrafterFromADisplacedOne) {
  Engine engine(plan_engine(options_with(kDrafter)));
  Scheduler scheduler(engine);
  const DrafterCheck check = check_drafter(scheduler, read_text_model(GgufFile::open(kTarget)).tokenizer);
  std::printf("kept %d drafts in %d tokens, displaced %d\n", static_cast<int>(check.n_accepted),
              static_cast<int>(check.n_tokens), static_cast<int>(check.n_displaced));
  EXPECT_EQ(check.warning(), "");
  EXPECT_NE((DrafterCheck{32, 9, 9}.warning()), "");
  EXPECT_NE((DrafterCheck{32, 1, 0}.warning()), "");
  EXPECT_EQ((DrafterCheck{0, 0, 0}.warning()), "");
}

}  // namespace
}  // namespace onebit::test
