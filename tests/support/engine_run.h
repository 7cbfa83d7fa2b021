// What tests of the token loop share: a listener that records, tiny models as files, and ways to run one request.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/scheduler.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace onebit::test {

struct Recorder : Listener {
  std::vector<int32_t> ids;
  std::vector<TokenEvent> events;
  Statistics statistics;
  std::optional<FinishReason> reason;
  std::string message;
  size_t stop_after = SIZE_MAX;

  bool on_token(const TokenEvent& event) override {
    ids.push_back(event.id);
    events.push_back(event);
    return ids.size() < stop_after;
  }
  void on_finish(FinishReason r, const Statistics& s, const std::string& m) override {
    reason = r;
    statistics = s;
    message = m;
  }
};

/// A folder with a target, drafters of both versions, and engines over them.
class TinyModels {
 public:
  explicit TinyModels(const TinyShape& shape = {}) : shape_(shape) {
    write_tiny_target(dir_.file("target.gguf"), shape);
    write_tiny_drafter(dir_.file("draft1.gguf"), shape, 1);
    write_tiny_drafter(dir_.file("draft2.gguf"), shape, 2);
  }
  std::string path(const std::string& name) const { return dir_.file(name); }

  EngineOptions options(int drafter_version) const {
    EngineOptions o;
    o.model_path = dir_.file("target.gguf");
    if (drafter_version > 0) o.drafter_path = dir_.file("draft" + std::to_string(drafter_version) + ".gguf");
    o.device = "ref";
    o.draft_adaptive = false;  // lengths that do not depend on the clock
    o.n_ctx = 512;
    return o;
  }
  std::vector<int32_t> prompt(uint64_t seed, int64_t n) const {
    Rng rng(seed);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i)
      ids.push_back(static_cast<int32_t>(rng.next() % static_cast<uint64_t>(shape_.n_vocab)));
    return ids;
  }

 private:
  TempDir dir_;
  TinyShape shape_;
};

inline std::shared_ptr<Recorder> run(Scheduler& scheduler, Request request) {
  const auto recorder = std::make_shared<Recorder>();
  scheduler.submit(std::move(request), recorder);
  while (!recorder->reason) scheduler.step();
  return recorder;
}

inline std::shared_ptr<Recorder> run(const EngineOptions& options, Request request) {
  Engine engine(plan_engine(options));
  Scheduler scheduler(engine);
  return run(scheduler, std::move(request));
}

inline Request greedy(std::vector<int32_t> prompt, int64_t n) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = n;
  return request;
}

}  // namespace onebit::test
