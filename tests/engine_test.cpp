// The token loop on tiny random models: chunks, drafts, slots and reuse must not change a single token (on the
// reference backend, bit for bit), and what can't be served is refused by name.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <functional>

#include "base/error.h"
#include "engine/load_weights.h"
#include "engine/scheduler.h"
#include "engine/text_model.h"
#include "gguf/blocks.h"
#include "gguf/keys.h"
#include "gguf/writer.h"
#include "support/devices.h"
#include "support/engine_run.h"
#include "support/expect_error.h"
#include "support/gguf_bytes.h"
#include "support/temp_dir.h"
#include "support/tiny_text_model.h"

namespace onebit::test {
namespace {

/// Counts what it is given; the first weight stays in the file.
class CountingBackend : public Backend {
 public:
  const DeviceInfo& info() const override { return info_; }
  int64_t weight_bytes(const Weight& weight) const override { return static_cast<int64_t>(weight.data.size()); }
  void load(const Weight& weight) override { loaded.push_back(weight.name); }
  bool keeps_file_bytes(const Weight& weight) const override { return weight.name == "a"; }
  std::unique_ptr<StatePool> make_states(const std::vector<const State*>&, const StateSizes&) override { return {}; }
  std::unique_ptr<Program> compile(const Plan&, std::span<StatePool* const>, const PlanLimits&) override { return {}; }

  std::vector<std::string> loaded;

 private:
  DeviceInfo info_;
};

// Far more than is read ahead. The bytes are nowhere: neither the backend nor the file, which has other tensors, looks.
TEST(LoadWeights, TakesAllInOrderAndStopsWhenAsked) {
  GgufBytes bytes;
  bytes.header(1, 1).entry("general.architecture", "qwen3").tensor("other", {4}, 0, 0).data(16);
  const GgufFile file = GgufFile::from_memory(bytes.bytes);
  static const uint8_t nothing = 0;
  std::vector<Weight> weights(40);
  std::vector<StoredWeight> stored;
  std::string names;
  for (Weight& weight : weights) {
    names.push_back(static_cast<char>('a' + stored.size()));
    weight.name = names.back();
    weight.data = {&nothing, size_t{100} << 20};
    stored.push_back({&weight, &file});
  }
  CountingBackend backend;
  std::vector<double> shares;
  load_weights(backend, stored, [&](double share) { shares.push_back(share); });
  ASSERT_EQ(backend.loaded.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(backend.loaded[i], weights[i].name);
    EXPECT_DOUBLE_EQ(shares[i], static_cast<double>(i + 1) / 40);
  }
  backend.loaded.clear();
  expect_error(ErrorKind::runtime, {"enough"}, [&] {
    load_weights(backend, stored, [&](double share) {
      if (share > 0.1) fail(ErrorKind::runtime, "enough");
    });
  });
  EXPECT_EQ(backend.loaded.size(), 5u);
}

TEST(TextReading, GivesTheTextSideOrItsErrorBeforeTheWeightsAreThere) {
  const TempDir dir;
  const std::string good = dir.file("good.gguf"), bad = dir.file("bad.gguf");
  write_tiny_text_model(good);
  write_tiny_target(bad, {});
  TextReading reading(good);
  reading.check();
  const std::string text = "two words";
  EXPECT_EQ(reading.take().tokenizer.encode(text, ParseSpecial::no),
            read_text_model(GgufFile::open(good)).tokenizer.encode(text, ParseSpecial::no));
  TextReading failing(bad);
  expect_refused({"bad.gguf", "tokenizer.ggml.model"}, [&] {
    for (;;) failing.check();
  });
  expect_refused({"bad.gguf", "tokenizer.ggml.model"}, [&] { failing.take(); });
}

TEST(Engine, ChunksDoNotChangeTheAnswer) {
  const TinyModels models;
  for (const CacheType cache : {CacheType::f32, CacheType::f16, CacheType::q8_0}) {
    EngineOptions options = models.options(0);
    options.cache = cache;
    const auto whole = run(options, greedy(models.prompt(3, 150), 30));
    options.n_batch = 7;
    const auto chunked = run(options, greedy(models.prompt(3, 150), 30));
    EXPECT_EQ(whole->ids.size(), 30u);
    EXPECT_EQ(whole->ids, chunked->ids);
    EXPECT_EQ(whole->reason, FinishReason::length);
  }
}

TEST(Engine, ADrafterDoesNotChangeGreedyText) {
  for (int64_t window : {0, 40}) {
    TinyShape shape;
    shape.window = window;
    const TinyModels models(shape);
    for (int version : {1, 2}) {
      int64_t accepted = 0;
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        const Request request = greedy(models.prompt(seed, 20 + 60 * static_cast<int64_t>(seed)), 80);
        const auto plain = run(models.options(0), request);
        const auto drafted = run(models.options(version), request);
        EXPECT_EQ(plain->ids, drafted->ids) << "version " << version << " window " << window << " seed " << seed;
        EXPECT_GT(drafted->statistics.rounds, 0);
        accepted += drafted->statistics.draft_n_accepted;
      }
      EXPECT_GT(accepted, 0) << "no draft was ever accepted: the test shows nothing";
    }
  }
}

/// A row's result does not depend on the rows beside it: decoded one by one or verified in a block, to the last bit, on
/// every device. So drafted text equals plain text exactly, near-ties included.
TEST(Engine, ADrafterDoesNotChangeTextOnAnyDevice) {
  for (BlockType type : {BlockType::f32, BlockType::q8_0, BlockType::q4_0}) {
    TinyShape shape;
    shape.type = type;
    const TinyModels models(shape);
    for (const Device& device : test_devices()) {
      if (device.name == "ref") continue;
      Request request = greedy(models.prompt(71, 70), 100);
      for (float temperature : {0.0f, 0.9f}) {
        request.sampling.temperature = temperature;
        EngineOptions plain = models.options(0), drafted = models.options(2);
        plain.device = drafted.device = device.name;
        plain.backend = drafted.backend = {.n_threads = 2, .isa = device.isa};
        EXPECT_EQ(run(plain, request)->ids, run(drafted, request)->ids)
            << device.label() << " " << type_name(type) << " temperature " << temperature;
      }
    }
  }
}

TEST(Engine, ASeedReproducesWithAndWithoutADrafter) {
  const TinyModels models;
  Request request = greedy(models.prompt(5, 40), 60);
  request.sampling.temperature = 0.8f;
  request.sampling.top_p = 0.95f;
  request.sampling.repeat_penalty = 1.1f;
  request.sampling.seed = 42;
  const auto plain = run(models.options(0), request);
  EXPECT_EQ(plain->ids, run(models.options(0), request)->ids);
  EXPECT_EQ(plain->ids, run(models.options(2), request)->ids);
  request.sampling.seed = 43;
  EXPECT_NE(plain->ids, run(models.options(0), request)->ids);
}

TEST(Engine, TwoUsersGetWhatEachGetsAlone) {
  const TinyModels models;
  for (int version : {0, 2}) {
    EngineOptions options = models.options(version);
    const Request a = greedy(models.prompt(11, 90), 40), b = greedy(models.prompt(12, 33), 60);
    const auto a_alone = run(options, a), b_alone = run(options, b);
    options.n_slots = 2;
    options.n_batch = 32;
    Engine engine(plan_engine(options));
    Scheduler scheduler(engine);
    const auto a_both = std::make_shared<Recorder>(), b_both = std::make_shared<Recorder>();
    scheduler.submit(a, a_both);
    scheduler.submit(b, b_both);
    while (!a_both->reason || !b_both->reason) scheduler.step();
    EXPECT_EQ(a_alone->ids, a_both->ids);
    EXPECT_EQ(b_alone->ids, b_both->ids);
  }
}

TEST(Engine, AContinuedConversationIsReusedExactly) {
  const TinyModels models;
  for (int version : {0, 2}) {
    Engine engine(plan_engine(models.options(version)));
    Scheduler scheduler(engine);
    const std::vector<int32_t> first = models.prompt(21, 50);
    const auto answer = run(scheduler, greedy(first, 25));
    std::vector<int32_t> second = first;
    second.insert(second.end(), answer->ids.begin(), answer->ids.end());
    const std::vector<int32_t> more = models.prompt(22, 30);
    second.insert(second.end(), more.begin(), more.end());
    const auto reused = run(scheduler, greedy(second, 25));
    EXPECT_GE(reused->statistics.cache_n, 70);
    EXPECT_EQ(reused->statistics.cache_n + reused->statistics.prompt_n, static_cast<int64_t>(second.size()));
    EXPECT_EQ(reused->ids, run(models.options(0), greedy(second, 25))->ids);
    const auto other = run(scheduler, greedy(models.prompt(23, 50), 25));
    EXPECT_EQ(other->statistics.cache_n, 0);
    EXPECT_EQ(other->ids, run(models.options(0), greedy(models.prompt(23, 50), 25))->ids);
  }
}

TEST(Engine, CancellingFreesTheSlotForTheNext) {
  const TinyModels models;
  Engine engine(plan_engine(models.options(2)));
  Scheduler scheduler(engine);
  const auto running = std::make_shared<Recorder>(), queued = std::make_shared<Recorder>(),
             next = std::make_shared<Recorder>();
  const RequestId first = scheduler.submit(greedy(models.prompt(31, 40), 400), running);
  const RequestId second = scheduler.submit(greedy(models.prompt(32, 40), 400), queued);
  scheduler.submit(greedy(models.prompt(33, 40), 10), next);
  for (int i = 0; i < 5; ++i) scheduler.step();
  EXPECT_EQ(scheduler.n_queued(), 2);
  EXPECT_EQ(scheduler.slots()[0].request, first);
  scheduler.cancel(second);
  scheduler.cancel(first);
  scheduler.step();
  EXPECT_EQ(running->reason, FinishReason::cancelled);
  EXPECT_EQ(queued->reason, FinishReason::cancelled);
  EXPECT_TRUE(queued->ids.empty());
  while (!next->reason) scheduler.step();
  EXPECT_EQ(next->ids, run(models.options(0), greedy(models.prompt(33, 40), 10))->ids);
  EXPECT_FALSE(scheduler.step());
}

TEST(Engine, AnswersEndWhereTheyShould) {
  const TinyModels models;
  const std::vector<int32_t> prompt = models.prompt(41, 40);
  for (int version : {0, 2}) {
    Engine engine(plan_engine(models.options(version)));
    Scheduler scheduler(engine);
    const auto whole = run(scheduler, greedy(prompt, 60));
    Request stopped = greedy(prompt, 60);
    stopped.stop_ids = {whole->ids[20]};
    const auto first = std::find(whole->ids.begin(), whole->ids.end(), whole->ids[20]) - whole->ids.begin();
    const auto by_id = run(scheduler, stopped);
    EXPECT_EQ(by_id->reason, FinishReason::stop);
    EXPECT_EQ(by_id->ids.size(), static_cast<size_t>(first));
    const auto by_listener = std::make_shared<Recorder>();
    by_listener->stop_after = 13;
    scheduler.submit(greedy(prompt, 60), by_listener);
    while (!by_listener->reason) scheduler.step();
    EXPECT_EQ(by_listener->reason, FinishReason::stop);
    EXPECT_EQ(by_listener->ids, std::vector<int32_t>(whole->ids.begin(), whole->ids.begin() + 13));
    const auto full = run(scheduler, greedy(models.prompt(42, 500), -1));
    EXPECT_EQ(full->reason, FinishReason::length);
    EXPECT_EQ(full->ids.size(), 12u);
  }
}

TEST(Engine, LogprobsAreTheTargetsOwn) {
  const TinyModels models;
  Request request = greedy(models.prompt(51, 40), 20);
  request.sampling.n_logprobs = 3;
  const auto plain = run(models.options(0), request), drafted = run(models.options(2), request);
  ASSERT_EQ(plain->events.size(), drafted->events.size());
  for (size_t i = 0; i < plain->events.size(); ++i) {
    EXPECT_EQ(plain->events[i].logprob, drafted->events[i].logprob);
    ASSERT_EQ(plain->events[i].top.size(), 3u);
    EXPECT_EQ(plain->events[i].top[0].id, plain->events[i].id);
    EXPECT_GE(plain->events[i].top[0].logprob, plain->events[i].top[1].logprob);
  }
}

TEST(Engine, DraftLengthsFollowTheRequest) {
  const TinyModels models;
  Request request = greedy(models.prompt(61, 40), 40);
  const auto block = run(models.options(2), request);
  EXPECT_EQ(block->statistics.accepted_per_position.size(), 5u);  // a block of 6 drafts 5
  request.draft_max = 2;
  const auto two = run(models.options(2), request);
  EXPECT_EQ(two->statistics.accepted_per_position.size(), 2u);
  request.draft_max = 0;
  const auto none = run(models.options(2), request);
  EXPECT_EQ(none->statistics.rounds, 0);
  request.draft_max.reset();
  request.draft_p_min = 1.0f;
  const auto unsure = run(models.options(2), request);
  EXPECT_LT(unsure->statistics.draft_n, block->statistics.draft_n);
  EXPECT_EQ(block->ids, two->ids);
  EXPECT_EQ(block->ids, none->ids);
  EXPECT_EQ(block->ids, unsure->ids);
}

std::string message_of(const std::function<void()>& action, ErrorKind kind) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// A drafter's file with more tensors; values [rows of the shape's last dimension, ...] are encoded as `type`.
struct Extra {
  std::string name;
  BlockType type;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

void add_tensors(const std::string& from, const std::string& to, const std::vector<Extra>& extras) {
  const GgufFile file = GgufFile::open(from);
  GgufWriter out(to);
  for (const MetaEntry& entry : file.metadata()) out.add(entry.key, entry.value);
  for (const TensorInfo& t : file.tensors()) out.declare(t.name, t.type, t.shape);
  for (const Extra& extra : extras) out.declare(extra.name, extra.type, extra.shape);
  for (const TensorInfo& t : file.tensors()) out.write(t.name, t.data);
  for (const Extra& extra : extras) {
    const int64_t k = extra.shape.back(), n_row = static_cast<int64_t>(extra.values.size()) / k;
    std::vector<uint8_t> bytes(static_cast<size_t>(n_row * row_bytes(extra.type, k)));
    for (int64_t r = 0; r < n_row; ++r) {
      encode_row(extra.type, extra.values.data() + r * k, bytes.data() + r * row_bytes(extra.type, k), k);
    }
    out.write(extra.name, bytes);
  }
  out.finish();
}

/// Accepted drafts of all rounds of a few answers.
std::vector<int32_t> acceptance(const TinyModels& models, EngineOptions options) {
  options.device = "cpu";
  options.backend.n_threads = 1;
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  std::vector<int32_t> accepted;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const auto answer = run(scheduler, greedy(models.prompt(seed, 60), 120));
    const auto& rounds = answer->statistics.accepted_per_round;
    accepted.insert(accepted.end(), rounds.begin(), rounds.end());
  }
  return accepted;
}

TEST(Engine, ADraftersOwnEmbeddingAndHeadAreUsed) {
  const TinyModels models;
  const GgufFile target = GgufFile::open(models.path("target.gguf"));
  Rng rng(8);
  for (const int version : {1, 2}) {
    /// With a tensor of its own, which is the target's or random.
    const auto with = [&](const std::string& name, BlockType type, bool targets) {
      const TensorInfo* info = target.find(name);
      Extra extra{name, type, info->shape, std::vector<float>(info->data.size() / 4)};
      std::memcpy(extra.values.data(), info->data.data(), info->data.size());
      for (float& x : extra.values) x = targets ? x : static_cast<float>(rng.uniform() - 0.5);
      EngineOptions options = models.options(version);
      const std::string path = models.path("own.gguf");
      add_tensors(options.drafter_path, path, {extra});
      options.drafter_path = path;
      EXPECT_TRUE(plan_engine(options).warnings.empty());
      return acceptance(models, options);
    };
    const std::vector<int32_t> borrowed = acceptance(models, models.options(version));
    for (const char* name : {keys::kTokenEmbd, keys::kOutput}) {
      ASSERT_EQ(target.find(name)->type, BlockType::f32);
      EXPECT_EQ(with(name, BlockType::f32, true), borrowed) << name;
      for (const BlockType type : {BlockType::f32, BlockType::bf16, BlockType::q8_0, BlockType::q4_0}) {
        EXPECT_NE(with(name, type, false), borrowed) << name << " " << type_name(type);
      }
    }
  }
}

TEST(Engine, ADraftersUnknownTensorsAreTold) {
  const TinyModels models;
  EngineOptions options = models.options(2);
  const std::string path = models.path("more.gguf");
  add_tensors(options.drafter_path, path, {{"markov_w1.weight", BlockType::f32, {4}, {1, 2, 3, 4}}});
  options.drafter_path = path;
  const std::vector<std::string> warnings = plan_engine(options).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("markov_w1.weight"), std::string::npos) << warnings[0];
}

TEST(Engine, MismatchedDraftersAreRefusedWithBothNumbers) {
  const TinyModels models;
  TinyShape wide;
  wide.n_embd = 96;
  const TinyModels other(wide);
  EngineOptions options = models.options(0);
  options.drafter_path = other.path("draft2.gguf");
  const std::string hidden = message_of([&] { plan_engine(options); }, ErrorKind::refused);
  EXPECT_NE(hidden.find("96"), std::string::npos) << hidden;
  EXPECT_NE(hidden.find("64"), std::string::npos) << hidden;
  TinyShape deep;
  deep.n_layer = 8;
  const TinyModels deeper(deep);
  options.drafter_path = deeper.path("draft2.gguf");
  const std::string taps = message_of([&] { plan_engine(options); }, ErrorKind::refused);
  EXPECT_NE(taps.find("block 7"), std::string::npos) << taps;
  EXPECT_NE(taps.find("4 blocks"), std::string::npos) << taps;
  options.drafter_path = models.path("target.gguf");
  EXPECT_NE(message_of([&] { plan_engine(options); }, ErrorKind::refused).find("dflash"), std::string::npos);
  options = models.options(0);
  options.model_path = models.path("draft2.gguf");
  EXPECT_NE(message_of([&] { plan_engine(options); }, ErrorKind::refused).find("--dflash"), std::string::npos);
}

TEST(Engine, MemoryOverTheLimitIsATableNotAKill) {
  const TinyModels models;
  EngineOptions options = models.options(2);
  options.memory_limit = 1000;
  const std::string message = message_of([&] { Engine engine(plan_engine(options)); }, ErrorKind::out_of_memory);
  for (const char* pool : {"weights", "state", "scratch", "taps"})
    EXPECT_NE(message.find(pool), std::string::npos) << message;
}

TEST(Engine, BadRequestsAreRefusedBeforeTheyAreQueued) {
  const TinyModels models;
  Engine engine(plan_engine(models.options(0)));
  Scheduler scheduler(engine);
  const auto refused = [&](const Request& request) {
    return message_of([&] { scheduler.submit(request, std::make_shared<Recorder>()); }, ErrorKind::usage);
  };
  EXPECT_NE(refused(greedy({}, 5)).find("at least one"), std::string::npos);
  EXPECT_NE(refused(greedy(models.prompt(1, 512), 5)).find("512"), std::string::npos);
  EXPECT_NE(refused(greedy({99}, 5)).find("99"), std::string::npos);
  EXPECT_NE(refused(greedy({-1}, 5)).find("-1"), std::string::npos);
  Request hot = greedy({1, 2}, 5);
  hot.sampling.temperature = -1;
  EXPECT_NE(refused(hot).find("temperature"), std::string::npos);
  EXPECT_FALSE(scheduler.step());
}

}  // namespace
}  // namespace onebit::test
