// Going on from kept states: what is reused, that it changes no number, and that memory stays within what was reserved.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "engine/prompt_cuts.h"
#include "support/devices.h"
#include "support/engine_run.h"

namespace onebit::test {
namespace {

constexpr int32_t kTurn = 10;  // ends a turn in the prompts of these tests

using Ids = std::vector<int32_t>;

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Random tokens without ends of turns.
Ids words(uint64_t seed, int64_t n) {
  Rng rng(seed);
  Ids ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.next() % kTurn));
  return ids;
}

/// Random tokens of a whole turn.
Ids turn(uint64_t seed, int64_t n) { return words(seed, n - 1) + Ids{kTurn}; }

Request chat(Ids prompt, int64_t n) {
  Request request = greedy(std::move(prompt), n);
  request.turn_ids = {kTurn};
  request.sampling.n_logprobs = 2;
  return request;
}

/// Bits of every reported number.
std::vector<std::pair<int32_t, float>> numbers(const Recorder& recorder) {
  std::vector<std::pair<int32_t, float>> all;
  for (const TokenEvent& event : recorder.events) {
    all.emplace_back(event.id, event.logprob);
    for (const TokenLogprob& top : event.top) all.emplace_back(top.id, top.logprob);
  }
  return all;
}

/// An engine with its scheduler.
struct Loop {
  explicit Loop(const EngineOptions& options) : engine(plan_engine(options)), scheduler(engine) {}
  std::shared_ptr<Recorder> ask(Request request) { return run(scheduler, std::move(request)); }
  PrefixCacheStatus cache() const { return scheduler.prefix_cache(); }

  Engine engine;
  Scheduler scheduler;
};

EngineOptions with_cache(EngineOptions options, int64_t bytes = 8 << 20) {
  options.cache_bytes = bytes;
  options.n_ctx = 1024;
  return options;
}

/// The same request on an engine that keeps nothing.
std::shared_ptr<Recorder> fresh(EngineOptions options, Request request) {
  options.n_slots = 1;
  request.reuse_prefix = false;
  return run(options, std::move(request));
}

// --- where states are kept -------------------------------------------------------------------------------------------

std::vector<int64_t> positions(const std::vector<PromptCut>& cuts, bool kept_only) {
  std::vector<int64_t> all;
  for (const PromptCut& cut : cuts) {
    if (cut.keep || !kept_only) all.push_back(cut.pos);
  }
  return all;
}

TEST(PromptCuts, AreTheEndsOfTurnsAndMultiples) {
  const Ids prompt = turn(1, 100) + turn(2, 70) + turn(3, 3) + turn(4, 117) + turn(5, 80) + words(6, 5);
  const auto cuts = prompt_cuts(prompt, Ids{kTurn}, 128);
  EXPECT_EQ(positions(cuts, false), (std::vector<int64_t>{100, 128, 170, 256, 290, 370}));  // not 173
  EXPECT_EQ(positions(cuts, true), (std::vector<int64_t>{100, 128, 256, 290, 370}));
  // Of earlier turns the states that save much are kept too.
  const Ids chat =
      turn(1, 50) + turn(2, 60) + turn(3, 70) + turn(4, 127) + turn(5, 1) + turn(6, 9) + turn(7, 9) + words(8, 2);
  EXPECT_EQ(positions(prompt_cuts(chat, Ids{kTurn}, 1024), true), (std::vector<int64_t>{50, 180, 317, 326}));
  EXPECT_TRUE(prompt_cuts(turn(1, 90), Ids{kTurn}, 128).empty());  // the end is not before the last token
  EXPECT_TRUE(prompt_cuts(words(1, 127), {}, 128).empty());
}

RC_GTEST_PROP(PromptCutsProperty, DependOnlyOnWhatIsBefore, ()) {
  Ids ids = *rc::gen::container<Ids>(500, rc::gen::weightedElement<int32_t>({{40, 1}, {1, kTurn}}));
  const auto whole = positions(prompt_cuts(ids, Ids{kTurn}, 192), false);
  const auto n = *rc::gen::inRange<size_t>(2, ids.size());
  ids.resize(n);
  for (int64_t pos : positions(prompt_cuts(ids, Ids{kTurn}, 192), false)) {
    RC_ASSERT(std::find(whole.begin(), whole.end(), pos) != whole.end());
  }
}

// --- what is reused, and that it shows in no number ------------------------------------------------------------------

/// A device, a kind of model, a type of matrices, a drafter's version (0: none).
struct Setting {
  Device device;
  int64_t interval;  // 1: attention only
  BlockType type;
  int drafter;
};

std::vector<Setting> settings() {
  std::vector<Setting> all = {{{"ref", ""}, 2, BlockType::f32, 0}, {{"ref", ""}, 1, BlockType::q8_0, 2}};
  for (const Device& device : test_devices()) {
    if (device.name == "ref") continue;
    all.push_back({device, 2, BlockType::q4_0, 2});
  }
  all.push_back({{"cpu", ""}, 1, BlockType::q4_0, 2});
  return all;
}

class PrefixReuse : public testing::TestWithParam<Setting> {
 protected:
  PrefixReuse() : models_(shape()) {
    options_ = with_cache(models_.options(GetParam().drafter));
    options_.device = GetParam().device.name;
    options_.backend = {.n_threads = 2, .isa = GetParam().device.isa};
    options_.w4a4 = W4a4::all;
    options_.n_batch = 128;
    options_.n_slots = 2;
  }
  static TinyShape shape() {
    TinyShape shape;
    shape.interval = GetParam().interval;
    shape.type = GetParam().type;
    shape.window = 100;
    return shape;
  }
  bool hybrid() const { return GetParam().interval > 1; }

  TinyModels models_;
  EngineOptions options_;
};

TEST_P(PrefixReuse, OfWhatWasReadAsAPromptIsBitIdentical) {
  Loop loop(options_);
  const Ids system = turn(1, 150), first = turn(2, 90), second = turn(3, 40);
  loop.ask(chat(system + first + words(4, 4), 12));
  // Another conversation with the same system prompt; the same one with its message edited; the same one again.
  for (const Ids& prompt :
       {system + second + words(4, 4), system + turn(5, 200) + words(4, 4), system + first + words(4, 4)}) {
    const auto reused = loop.ask(chat(prompt, 12));
    EXPECT_GE(reused->statistics.cache_n, 150);
    EXPECT_EQ(numbers(*reused), numbers(*fresh(options_, chat(prompt, 12)))) << prompt.size();
  }
  // An earlier turn is rendered differently: all before it is still there.
  const Ids rewritten = system + first + words(6, 30) + turn(7, 20) + words(4, 4);
  const auto reused = loop.ask(chat(rewritten, 12));
  EXPECT_GE(reused->statistics.cache_n, 240);
  EXPECT_EQ(numbers(*reused), numbers(*fresh(options_, chat(rewritten, 12))));
}

TEST_P(PrefixReuse, OfAnAnswerIsAsIfItHadGoneOn) {
  // One engine serves the conversation alone and its slot goes on; another must go on from what it kept, since other
  // conversations have been in all its slots.
  Loop alone(options_), shared(options_);
  Ids prompt = turn(1, 100) + words(2, 3);
  for (int i = 0; i < 4; ++i) {
    const auto uninterrupted = alone.ask(chat(prompt, 20)), restored = shared.ask(chat(prompt, 20));
    EXPECT_EQ(numbers(*uninterrupted), numbers(*restored)) << "turn " << i;
    const auto n_read = static_cast<int64_t>(prompt.size());
    EXPECT_EQ(uninterrupted->statistics.cache_n, restored->statistics.cache_n);
    if (i > 0) {
      EXPECT_GE(restored->statistics.cache_n, n_read - 33);
    }
    for (uint64_t other = 0; other < 2; ++other) shared.ask(chat(turn(100 + other, 80) + words(1, 3), 5));
    prompt = prompt + uninterrupted->ids + Ids{kTurn} + turn(static_cast<uint64_t>(20 + i), 28) + words(2, 3);
  }
}

TEST_P(PrefixReuse, ByTwoSlotsAtOnce) {
  Loop loop(options_);
  const Ids system = turn(1, 180);
  loop.ask(chat(system + words(2, 10), 3));
  const Request a = chat(system + turn(3, 33) + words(4, 3), 40), b = chat(system + turn(5, 50) + words(4, 3), 40);
  const auto for_a = std::make_shared<Recorder>(), for_b = std::make_shared<Recorder>();
  loop.scheduler.submit(a, for_a);
  loop.scheduler.submit(b, for_b);
  while (!for_a->reason || !for_b->reason) loop.scheduler.step();
  EXPECT_NE(for_a->statistics.slot, for_b->statistics.slot);
  for (const auto& [request, recorder] : {std::pair{a, for_a}, std::pair{b, for_b}}) {
    EXPECT_GE(recorder->statistics.cache_n, 180);
    EXPECT_EQ(numbers(*recorder), numbers(*fresh(options_, request)));
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, PrefixReuse, testing::ValuesIn(settings()), [](const auto& parameters) {
  const Setting& s = parameters.param;
  return s.device.label() + (s.interval > 1 ? "_hybrid_" : "_attention_") + type_name(s.type);
});

// --- a conversation --------------------------------------------------------------------------------------------------

TEST(PrefixCache, OnlyWhatIsNewOfATurnIsRead) {
  const TinyModels models;
  Loop loop(with_cache(models.options(2)));
  Ids prompt = turn(1, 70) + words(2, 3);
  int64_t n_before = 0;
  for (uint64_t i = 0; i < 12; ++i) {
    const auto answer = loop.ask(chat(prompt, 15));
    EXPECT_EQ(answer->statistics.cache_n, n_before) << "turn " << i;
    if (i > 0) {  // the last message edited: all before it is there
      Ids edited = prompt;
      edited[prompt.size() - 10] = (edited[prompt.size() - 10] + 1) % kTurn;
      EXPECT_GE(loop.ask(chat(edited, 5))->statistics.cache_n, n_before) << "turn " << i;
    }
    // The last token is drawn, but evaluated only when there is another.
    n_before = static_cast<int64_t>(prompt.size() + answer->ids.size()) - 1;
    prompt = prompt + answer->ids + Ids{kTurn} + turn(20 + i, 30) + words(2, 3);
  }
  EXPECT_EQ(loop.cache().n_evicted, 0);
}

TEST(PrefixCache, ACancelledAnswerIsGoneOnFromExactly) {
  const TinyModels models;
  const EngineOptions options = with_cache(models.options(2));
  Loop loop(options);
  const Ids prompt = turn(1, 300) + words(2, 5);
  for (int n_steps : {1, 2, 4, 9}) {
    const auto cancelled = std::make_shared<Recorder>();
    const RequestId id = loop.scheduler.submit(chat(prompt, 60), cancelled);
    for (int i = 0; i < n_steps; ++i) loop.scheduler.step();
    loop.scheduler.cancel(id);
    loop.scheduler.step();
    EXPECT_EQ(cancelled->reason, FinishReason::cancelled);
    const Ids next = prompt + cancelled->ids + words(3, 6);
    EXPECT_EQ(numbers(*loop.ask(chat(next, 10))), numbers(*fresh(options, chat(next, 10)))) << n_steps;
  }
}

TEST(PrefixCache, WithoutABudgetOnlySlotsRemember) {
  const TinyModels models;
  Loop loop(with_cache(models.options(0), 0));
  const Ids first = words(1, 90), second = words(2, 90);
  const auto answer = loop.ask(chat(first, 10));
  EXPECT_EQ(loop.ask(chat(first + answer->ids + words(3, 5), 10))->statistics.cache_n, 99);
  loop.ask(chat(second, 10));
  EXPECT_EQ(loop.ask(chat(first, 10))->statistics.cache_n, 0);
  EXPECT_EQ(loop.cache().n_entries, 0);
}

// --- memory ----------------------------------------------------------------------------------------------------------

TEST(PrefixCache, StaysWithinItsBudget) {
  for (int64_t interval : {1, 2}) {
    TinyShape shape;
    shape.interval = interval;
    const TinyModels models(shape);
    const int64_t budget = 200 << 10;
    const EngineOptions options = with_cache(models.options(2), budget);
    EnginePlan plan = plan_engine(options);
    EXPECT_GT(plan.cache_sizes.n_entries, 0);
    EXPECT_LE(plan.cache_sizes.bytes(), budget);
    EXPECT_EQ(plan.memory.back().name, "prefix cache");
    EXPECT_EQ(plan.memory.back().bytes, plan.cache_sizes.bytes());
    Loop loop(options);
    for (uint64_t i = 0; i < 20; ++i) {
      const Request request = chat(turn(i, 100 + static_cast<int64_t>(37 * i % 300)) + words(i + 99, 20), 10);
      const auto answer = loop.ask(request);
      EXPECT_LE(loop.cache().n_states, plan.cache_sizes.n_entries);
      EXPECT_LE(loop.cache().n_pages, plan.target_sizes.n_pages);
      EXPECT_LE(loop.cache().bytes, loop.cache().limit_bytes);
      EXPECT_LE(loop.cache().budget_bytes, budget);
      if (i % 13 == 0) {
        EXPECT_EQ(answer->ids, fresh(options, request)->ids);
      }
    }
    EXPECT_GT(loop.cache().n_evicted, 0);
  }
}

TEST(PrefixCache, WhatIsUsedStaysLongest) {
  const TinyModels models;
  EngineOptions options = with_cache(models.options(0), 300 << 10);
  Loop loop(options);
  const Ids system = turn(1, 200);
  for (uint64_t i = 0; i < 30; ++i) {
    const auto answer = loop.ask(chat(system + turn(50 + i, 70) + words(3, 4), 8));  // one conversation after another
    if (i > 0) {
      EXPECT_GE(answer->statistics.cache_n, 200) << "conversation " << i;
    }
  }
  EXPECT_GT(loop.cache().n_evicted, 0);
}

TEST(PrefixCache, TooSmallABudgetIsToldAndLeftAlone) {
  const TinyModels models;
  const EnginePlan plan = plan_engine(with_cache(models.options(0), 1000));
  EXPECT_EQ(plan.cache_sizes.n_entries, 0);
  ASSERT_EQ(plan.warnings.size(), 1u);
  EXPECT_NE(plan.warnings[0].find("one state"), std::string::npos);
}

/// The tape of one row of a 27B model's 48 recurrent layers (16 key and 48 value heads of 128).
TEST(PrefixCache, ARowUnderTestTakesLessThanTwoMebibytes) {
  const State layer{"net", DeltaNetState{.n_channel = 2 * 16 * 128 + 48 * 128, .n_v_head = 48, .d_k = 128, .d_v = 128}};
  const auto bytes = [&](int64_t n_tape) { return 48 * state_bytes(layer, {.n_slots = 1, .n_tape = n_tape}); };
  const int64_t row = bytes(1) - bytes(0);
  EXPECT_EQ(row, 48 * (10240 + 2 * 48) * 4);
  EXPECT_LE(row, 2 << 20);
  EXPECT_GT(bytes(0), 70 * row);  // what a copy of the state would take
}

// --- everything at once ----------------------------------------------------------------------------------------------

/// Conversations that go on, are edited, start anew, are cancelled, in more places than there are slots, with little
/// memory: every answer is the one that a fresh engine gives.
class Conversations {
 public:
  Conversations(const TinyModels& models, uint64_t seed)
      : rng_(seed), options_(with_cache(models.options(2 * below(2)))) {
    const int64_t budgets[] = {0, 60 << 10, 200 << 10, 2 << 20};
    options_.cache_bytes = budgets[below(4)];
    options_.n_slots = 2;
    options_.n_ctx = 512;
  }

  void run(int n_rounds) {
    Loop loop(options_);
    EngineOptions plain = options_;
    plain.drafter_path.clear();
    plain.cache_bytes = 0;
    plain.n_slots = 1;
    Loop judge(plain);
    for (int round = 0; round < n_rounds; ++round) {
      std::vector<Running> running;
      for (Ids& conversation : conversations_) running.push_back(say(loop.scheduler, conversation));
      while (loop.scheduler.step()) {
        for (Running& r : running) {
          if (--r.steps_left == 0) loop.scheduler.cancel(r.id);
        }
      }
      for (size_t i = 0; i < running.size(); ++i) {
        check(running[i], judge);
        conversations_[i] = running[i].prompt + running[i].recorder->ids;
      }
    }
  }

 private:
  struct Running {
    Ids prompt;
    std::shared_ptr<Recorder> recorder;
    RequestId id;
    int64_t steps_left;  // until it is cancelled
  };

  int64_t below(uint64_t n) { return static_cast<int64_t>(rng_.next() % n); }

  Running say(Scheduler& scheduler, const Ids& before) {
    Ids prompt = before;
    const int64_t what = below(4);
    if (what == 0 || prompt.size() > 300 || prompt.empty()) {
      prompt = turn(static_cast<uint64_t>(below(3)), 60 + below(60));  // a few of them have the same beginning
    } else if (what == 1) {
      prompt.resize(prompt.size() - prompt.size() / 4);  // edited
    }
    prompt = prompt + turn(static_cast<uint64_t>(below(9)), 1 + below(90)) + words(1, 2);
    const auto recorder = std::make_shared<Recorder>();
    const int64_t steps[] = {1, 3, 1000, 1000};
    return {prompt, recorder, scheduler.submit(chat(prompt, 12), recorder), steps[below(4)]};
  }

  static void check(const Running& r, Loop& judge) {
    ASSERT_TRUE(r.recorder->reason.has_value());
    Request again = chat(r.prompt, 12);
    again.reuse_prefix = false;
    const auto expected = numbers(*judge.ask(again)), actual = numbers(*r.recorder);
    ASSERT_LE(actual.size(), expected.size());
    EXPECT_TRUE(std::equal(actual.begin(), actual.end(), expected.begin()));
    if (r.recorder->reason == FinishReason::length) {
      EXPECT_EQ(actual.size(), expected.size());
    }
  }

  Rng rng_;
  EngineOptions options_;
  std::vector<Ids> conversations_{3};
};

TEST(PrefixCache, ConversationsGetWhatTheyWouldGetAlone) {
  TinyShape attention;
  attention.interval = 1;
  const TinyModels hybrid_models, attention_models(attention);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    Conversations(seed % 3 == 0 ? attention_models : hybrid_models, seed).run(4);
  }
}

}  // namespace
}  // namespace onebit::test
