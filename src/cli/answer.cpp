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

}  // namespace onebit
