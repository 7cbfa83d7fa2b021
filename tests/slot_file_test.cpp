// States on disk: a conversation goes on after a restart as if there had been none; files that don't fit or are damaged
// are refused and change nothing.
#include "engine/slot_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/engine_run.h"
#include "support/expect_error.h"

namespace onebit::test {
namespace {

constexpr int32_t kTurn = 10;

using Ids = std::vector<int32_t>;

struct Loop {
  explicit Loop(const EngineOptions& options) : engine(plan_engine(options)), scheduler(engine) {}
  std::shared_ptr<Recorder> ask(Request request) { return run(scheduler, std::move(request)); }
  SlotFileReport act(int32_t slot, SlotAction action, const std::string& path) {
    auto report = scheduler.act_on_slot(slot, action, path);
    while (report.wait_for(std::chrono::seconds(0)) != std::future_status::ready) scheduler.step();
    return report.get();
  }

  Engine engine;
  Scheduler scheduler;
};

class SlotFile : public testing::Test {
 protected:
  SlotFile() : models_(shape(2)) {}
  static TinyShape shape(int64_t interval) {
    TinyShape shape;
    shape.interval = interval;
    shape.window = 60;
    return shape;
  }
  static EngineOptions options(const TinyModels& models, int drafter, const std::string& device = "ref") {
    EngineOptions options = models.options(drafter);
    options.device = device;
    options.cache_bytes = 8 << 20;
    options.n_slots = 2;
    return options;
  }
  Request chat(Ids prompt) const {
    Request request = greedy(std::move(prompt), 20);
    request.turn_ids = {kTurn};
    request.sampling.n_logprobs = 0;
    return request;
  }
  Ids turn(uint64_t seed, int64_t n) const {
    Ids ids = models_.prompt(seed, n);
    for (int32_t& id : ids) id %= kTurn;
    ids.back() = kTurn;
    return ids;
  }
  std::string file() const { return folder_.file("slot"); }
  std::string read() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(file(), std::ios::binary) << bytes; }
  /// A conversation in slot 0 of an engine, saved.
  Ids saved(const EngineOptions& options) {
    Loop loop(options);
    Ids ids = turn(1, 150);
    const Ids message = turn(2, 70);
    ids.insert(ids.end(), message.begin(), message.end());
    ids.push_back(3);
    const auto answer = loop.ask(chat(ids));
    ids.insert(ids.end(), answer->ids.begin(), answer->ids.end());
    loop.act(answer->statistics.slot, SlotAction::save, file());
    return ids;
  }

  TinyModels models_;
  TempDir folder_;
};

TEST_F(SlotFile, AConversationGoesOnAfterARestart) {
  const TinyModels attention(shape(1));
  for (const TinyModels* models : {&attention, static_cast<const TinyModels*>(&models_)}) {
    for (const auto& [drafter, cache] :
         {std::pair(0, CacheType::f16), std::pair(0, CacheType::q8_0), std::pair(2, CacheType::f16)}) {
      for (const char* device : {"ref", "cpu"}) {
        EngineOptions o = options(*models, drafter, device);
        o.cache = cache;
        Loop first(o), second(o);
        Ids ids = turn(1, 150);
        ids.push_back(3);
        const auto answer = first.ask(chat(ids));
        const SlotFileReport saved = first.act(answer->statistics.slot, SlotAction::save, file());
        EXPECT_EQ(saved.n_tokens, 170);
        EXPECT_EQ(saved.n_bytes, static_cast<int64_t>(std::filesystem::file_size(file())));
        const SlotFileReport restored = second.act(1, SlotAction::restore, file());
        EXPECT_EQ(restored.n_tokens, saved.n_tokens);
        EXPECT_EQ(restored.n_bytes, saved.n_bytes);
        Ids edited = ids;
        edited.insert(edited.end(), {1, 2, 3, 4});
        ids.insert(ids.end(), answer->ids.begin(), answer->ids.end());
        ids.insert(ids.end(), {kTurn, 4, 5});
        const auto expected = first.ask(chat(ids)), actual = second.ask(chat(ids));
        EXPECT_EQ(actual->statistics.slot, 1);
        EXPECT_EQ(actual->statistics.cache_n, 170);
        EXPECT_EQ(actual->ids, expected->ids);
        for (size_t i = 0; i < actual->events.size(); ++i) {
          EXPECT_EQ(actual->events[i].logprob, expected->events[i].logprob);
        }
        // The states before the end came along.
        EXPECT_GE(second.ask(chat(edited))->statistics.cache_n, 150);
        EXPECT_EQ(second.ask(chat(edited))->ids, first.ask(chat(edited))->ids);
      }
    }
  }
}

TEST_F(SlotFile, ErasingForgetsTheConversation) {
  Loop loop(options(models_, 2));
  const Ids ids = turn(1, 200);
  loop.ask(chat(ids));
  EXPECT_EQ(loop.act(0, SlotAction::erase, "").n_tokens, 219);
  EXPECT_EQ(loop.scheduler.prefix_cache().n_entries, 0);
  EXPECT_EQ(loop.ask(chat(ids))->statistics.cache_n, 0);
  expect_error(ErrorKind::usage, {"slot 2", "0 to 1"}, [&] { loop.act(2, SlotAction::erase, ""); });
  loop.act(0, SlotAction::erase, "");
  expect_error(ErrorKind::usage, {"empty"}, [&] { loop.act(0, SlotAction::save, file()); });
}

TEST_F(SlotFile, ABusySlotIsWaitedFor) {
  Loop loop(options(models_, 0));
  const auto recorder = std::make_shared<Recorder>();
  loop.scheduler.submit(chat(turn(1, 100)), recorder);
  loop.scheduler.step();
  loop.act(0, SlotAction::save, file());
  EXPECT_TRUE(recorder->reason.has_value());
  auto never = loop.scheduler.act_on_slot(0, SlotAction::erase, "");
  loop.scheduler.cancel_all();
  expect_error(ErrorKind::runtime, {"ended"}, [&] { never.get(); });
}

TEST_F(SlotFile, AnswersGoOnWhileItIsWritten) {
  Loop loop(options(models_, 2));
  loop.ask(chat(turn(1, 100)));
  // The file that is written stands for a disk that takes nothing before somebody reads from it.
  const std::string disk = file() + "." + std::to_string(::getpid()) + ".part";
  ASSERT_EQ(::mkfifo(disk.c_str(), 0600), 0);
  auto saved = loop.scheduler.act_on_slot(0, SlotAction::save, file());
  loop.scheduler.step();
  auto restored = loop.scheduler.act_on_slot(0, SlotAction::restore, file());
  const auto answer = loop.ask(chat(turn(2, 60)));
  EXPECT_EQ(answer->ids.size(), 20u);
  EXPECT_EQ(saved.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(restored.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  std::ifstream reader(disk, std::ios::binary);
  const std::string written{std::istreambuf_iterator<char>(reader), {}};
  EXPECT_GT(written.size(), 1000u);
  expect_error(ErrorKind::runtime, {"can't be written"}, [&] { saved.get(); });  // it can't be gone back in
  while (restored.wait_for(std::chrono::seconds(0)) != std::future_status::ready) loop.scheduler.step();
  expect_error(ErrorKind::refused, {"slot"}, [&] { restored.get(); });
}

TEST_F(SlotFile, AnswersGoOnWhileItIsRead) {
  const EngineOptions o = options(models_, 2);
  // The file stands for a disk that gives nothing before somebody opens the pipe's other end.
  const std::string disk = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(disk.c_str(), 0600), 0);
  Loop loop(o);
  auto restored = loop.scheduler.act_on_slot(0, SlotAction::restore, disk);
  loop.scheduler.step();
  EXPECT_EQ(loop.ask(chat(turn(2, 60)))->ids.size(), 20u);
  EXPECT_EQ(restored.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  { const std::ofstream writer(disk); }
  while (restored.wait_for(std::chrono::seconds(0)) != std::future_status::ready) loop.scheduler.step();
  expect_error(ErrorKind::refused, {"pipe", "not a file"}, [&] { restored.get(); });
}

TEST_F(SlotFile, TasksOfASlotKeepTheirOrder) {
  const EngineOptions o = options(models_, 2);
  const Ids ids = saved(o);
  Loop loop(o);
  std::vector<std::future<SlotFileReport>> reports;
  for (const SlotAction action : {SlotAction::restore, SlotAction::save, SlotAction::erase, SlotAction::restore}) {
    reports.push_back(loop.scheduler.act_on_slot(0, action, file()));
  }
  for (auto& report : reports) {
    while (report.wait_for(std::chrono::seconds(0)) != std::future_status::ready) loop.scheduler.step();
    EXPECT_EQ(report.get().n_tokens, static_cast<int64_t>(ids.size()) - 1);
  }
  EXPECT_EQ(loop.ask(chat(ids))->statistics.cache_n, static_cast<int64_t>(ids.size()) - 1);
}

TEST_F(SlotFile, OfSomethingElseIsRefused) {
  const EngineOptions o = options(models_, 2);
  saved(o);
  const auto refused = [&](const EngineOptions& other, std::initializer_list<const char*> words) {
    Loop loop(other);
    expect_error(ErrorKind::refused, words, [&] { loop.act(0, SlotAction::restore, file()); });
  };
  TinyShape shape = this->shape(2);
  shape.seed = 2;
  const TinyModels other(shape);
  refused(options(other, 2), {"another model"});
  refused(options(models_, 1), {"another drafter"});
  refused(options(models_, 0), {"another drafter"});
  refused(options(models_, 2, "cpu"), {"another device", "ref there, cpu here"});
  EngineOptions small = o;
  small.n_ctx = 128;
  refused(small, {"240 tokens", "128", "--ctx-size"});
  EngineOptions wide = o;
  wide.cache = CacheType::f32;
  refused(wide, {"--cache-type"});
  std::filesystem::remove(file());
  refused(o, {"slot", "No such file"});
  std::filesystem::create_directory(file());
  refused(o, {"slot"});
}

TEST_F(SlotFile, DamageIsRefusedAndChangesNothing) {
  const EngineOptions o = options(models_, 2);
  const Ids ids = saved(o);
  const std::string whole = read();
  Loop loop(o);
  loop.act(0, SlotAction::restore, file());
  const auto refused = [&](const std::string& bytes) {
    write(bytes);
    expect_error(ErrorKind::refused, {"slot"}, [&] { loop.act(0, SlotAction::restore, file()); });
  };
  for (size_t n : {size_t{0}, size_t{7}, size_t{8}, size_t{40}, size_t{150}, whole.size() / 2, whole.size() - 1}) {
    refused(whole.substr(0, n));
  }
  refused(whole + "x");
  Rng rng(5);
  for (size_t i = 0; i < 160; ++i) {  // every byte of the head, some of the rest
    std::string damaged = whole;
    const size_t at = i < 120 ? i : rng.next() % whole.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << rng.next() % 8));
    refused(damaged);
  }
  EXPECT_EQ(loop.scheduler.slots()[0].n_past, static_cast<int64_t>(ids.size()) - 1);
  EXPECT_EQ(loop.ask(chat(ids))->statistics.cache_n, static_cast<int64_t>(ids.size()) - 1);
}

TEST_F(SlotFile, AFullDiskLeavesTheOlderFile) {
  saved(options(models_, 0));
  const std::string before = read();
  Loop loop(options(models_, 0));
  loop.ask(chat(turn(4, 60)));
  expect_error(ErrorKind::runtime, {"can't be written"},
               [&] { loop.act(0, SlotAction::save, folder_.file("missing") + "/slot"); });
  EXPECT_EQ(read(), before);
  EXPECT_EQ(folder_.count(), 1u);
}

}  // namespace
}  // namespace onebit::test
