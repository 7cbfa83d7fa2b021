#include "cli/answer.h"

#include <memory>

#include "base/error.h"

namespace onebit {
namespace {

constexpr int64_t kLongPrompt = 1024;  // shorter ones are read before a bar could be seen

/// Collects one answer. Failures of the screen are kept for after the step, since a listener must not throw.
class Collector : public Listener {
 public:
  Collector(const TextModel& model, const TextStreamOptions& text, const ShowText& show)
      : stream_(model.tokenizer, text), show_(show), progress_("reading the prompt") {}

  void on_prompt(int64_t done, int64_t total) override {
    if (done == total) return progress_.clear();
    if (total >= kLongPrompt) progress_.update(static_cast<double>(done) / static_cast<double>(total));
  }

  bool on_token(const TokenEvent& event) override {
    answer.tokens.push_back(event.id);
    ThinkDelta delta;
    const bool stopped = stream_.push(event.id, delta);
    return add(delta) && !stopped;
  }

  void on_finish(FinishReason reason, const Statistics& statistics, const std::string& message) override {
    ThinkDelta delta;
    stream_.finish(delta);
    add(delta);
    answer.reason = reason;
    answer.statistics = statistics;
    if (reason == FinishReason::error) failure = message;
    finished = true;
  }

  Answer answer;
  bool finished = false;
  std::string failure;

 private:
  bool add(const ThinkDelta& delta) {
    answer.text += delta.content;
    try {
      if (show_ && !delta.content.empty()) show_(delta.content);
    } catch (const Error& error) {
      failure = error.what();
    }
    return failure.empty();
  }

  TextStream stream_;
  const ShowText& show_;
  Progress progress_;
};

}  // namespace

Answer generate(Scheduler& scheduler, const TextModel& model, Request request, const TextStreamOptions& text,
                const ShowText& show, const StopSignals& signals) {
  const auto collector = std::make_shared<Collector>(model, text, show);
  const RequestId id = scheduler.submit(std::move(request), collector);
  while (!collector->finished) {
    if (signals.requested()) scheduler.cancel(id);
    scheduler.step();
  }
  if (!collector->failure.empty()) fail(ErrorKind::runtime, "{}", collector->failure);
  return std::move(collector->answer);
}

Json timings_json(const Statistics& s) {
  return Json{{"prompt_n", s.prompt_n},
              {"prompt_ms", s.prompt_ms},
              {"prompt_per_second", s.prompt_per_second()},
              {"predicted_n", s.predicted_n},
              {"predicted_ms", s.predicted_ms},
              {"predicted_per_second", s.predicted_per_second()},
              {"cache_n", s.cache_n},
              {"draft_n", s.draft_n},
              {"draft_n_accepted", s.draft_n_accepted}};
}

Json speculation_json(const Statistics& s, std::string_view drafter) {
  return Json{{"kind", drafter},
              {"rounds", s.rounds},
              {"drafted", s.draft_n},
              {"accepted", s.draft_n_accepted},
              {"tokens_per_step", s.tokens_per_step()},
              {"accepted_per_position", s.accepted_per_position},
              {"steps_by_length", s.steps_by_length},
              {"draft_passes", s.draft_passes},
              {"looked_up", s.lookup_n},
              {"looked_up_accepted", s.lookup_n_accepted},
              {"accepted_per_round", s.accepted_per_round}};
}

}  // namespace onebit
