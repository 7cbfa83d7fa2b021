#include "engine/drafter_check.h"

#include <fmt/format.h>

#include <memory>

namespace onebit {
namespace {

constexpr const char* kText =
    "def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n    return a + b\n\n\n"
    "def subtract(a, b):\n    \"\"\"Return the difference of a and b.\"\"\"\n    return a - b\n\n\n"
    "def multiply(a, b):\n    \"\"\"Return the product";
constexpr int64_t kTokens = 32;
constexpr int64_t kDisplaced = 16;  // positions; a drafter hardly minds one or two
constexpr double kSlowStepMs = 8;

struct Counter : Listener {
  Statistics statistics;
  bool done = false;
  bool on_token(const TokenEvent&) override { return true; }
  void on_finish(FinishReason, const Statistics& s, const std::string&) override {
    statistics = s;
    done = true;
  }
};

Statistics write_on(Scheduler& scheduler, const std::vector<int32_t>& prompt) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = kTokens;
  request.draft_adaptive = false;
  request.draft_p_min = 0;
  request.reuse_prefix = false;
  const auto counter = std::make_shared<Counter>();
  scheduler.submit(std::move(request), counter);
  while (!counter->done) scheduler.step();
  return counter->statistics;
}

}  // namespace

std::string DrafterCheck::warning() const {
  if (n_tokens == 0 || (n_accepted >= n_tokens / 8 && n_accepted > n_displaced)) return "";
  return fmt::format(
      "the drafter guesses badly: of {} tokens behind a built-in text it drafted {}, and {} from the hidden states of "
      "the "
      "wrong position; was it made for this model, and with these tap layers? Answers stay right, but drafting gains "
      "nothing",
      n_tokens, n_accepted, n_displaced);
}

DrafterCheck check_drafter(Scheduler& scheduler, const Tokenizer& tokenizer) {
  DrafterCheck check;
  if (!scheduler.drafts() || scheduler.plain_step_ms() > kSlowStepMs) return check;
  const std::vector<int32_t> prompt = tokenizer.encode(kText, ParseSpecial::no);
  const Statistics right = write_on(scheduler, prompt);
  scheduler.displace_taps(kDisplaced);
  const Statistics displaced = write_on(scheduler, prompt);
  scheduler.displace_taps(0);
  const std::future<SlotFileReport> erased = scheduler.act_on_slot(displaced.slot, SlotAction::erase, "");
  scheduler.step();
  check.n_tokens = right.predicted_n;
  check.n_accepted = right.draft_n_accepted;
  check.n_displaced = displaced.draft_n_accepted;
  return check;
}

}  // namespace onebit
