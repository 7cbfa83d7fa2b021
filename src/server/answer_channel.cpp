// A part under a mutex and an event; no call waits for the other side.
#include "server/answer_channel.h"

#include <exception>
#include <iterator>
#include <utility>

namespace onebit {

namespace {

double ms_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

AnswerChannel::AnswerChannel(const Tokenizer& tokenizer, const TextStreamOptions& text, Wake wake,
                             std::shared_ptr<void> ticket)
    : wake_(wake), ticket_(std::move(ticket)), stream_(tokenizer, text) {}

void AnswerChannel::on_prompt(int64_t done, int64_t total) {
  const std::lock_guard lock(mutex_);
  if (!prompt_started_) {
    prompt_started_ = Clock::now();
    n_cached_ = done;
  }
  part_.prompt_moved = true;
  part_.n_prompt_done = done;
  part_.n_prompt = total;
  publish();
}

bool AnswerChannel::on_token(const TokenEvent& event) {
  const std::lock_guard lock(mutex_);
  try {
    return take_token(event);
  } catch (const std::exception& error) {  // an id without text, or no memory
    failure_ = error.what();
    return false;
  }
}

bool AnswerChannel::take_token(const TokenEvent& event) {
  if (!first_token_) first_token_ = Clock::now();
  ++n_generated_;
  ThinkDelta delta;
  const bool stopped = stream_.push(event.id, delta);
  undecided_.push_back(event);
  if (delta.content.empty() && delta.reasoning.empty()) {
    if (stopped) undecided_.clear();  // they are part of the stop string
    return !stopped;
  }
  part_.text.content += delta.content;
  part_.text.reasoning += delta.reasoning;
  part_.tokens.insert(part_.tokens.end(), std::move_iterator(undecided_.begin()), std::move_iterator(undecided_.end()));
  undecided_.clear();
  publish();
  return !stopped;
}

void AnswerChannel::on_finish(FinishReason reason, const Statistics& statistics, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    part_.finished = true;
    part_.reason = failure_.empty() ? reason : FinishReason::error;
    try {
      stream_.finish(part_.text);
      part_.tokens.insert(part_.tokens.end(), undecided_.begin(), undecided_.end());
      part_.statistics = statistics;
      part_.message = failure_.empty() ? message : failure_;
    } catch (const std::exception&) {
      part_.reason = FinishReason::error;
    }
    publish();
  }
  ticket_.reset();
}

void AnswerChannel::publish() {
  if (wake_ == Wake::each_part || part_.finished) ready_.signal();
}

AnswerPart AnswerChannel::take() {
  const std::lock_guard lock(mutex_);
  ready_.clear();
  AnswerPart part = std::exchange(part_, {});
  part.n_generated = n_generated_;
  const auto now = Clock::now();
  if (prompt_started_) part.prompt_ms = ms_between(*prompt_started_, first_token_.value_or(now));
  if (first_token_) part.predicted_ms = ms_between(*first_token_, now);
  return part;
}

std::optional<size_t> AnswerChannel::matched_stop() const {
  const std::lock_guard lock(mutex_);
  return stream_.matched_stop();
}

int64_t AnswerChannel::n_cached() const {
  const std::lock_guard lock(mutex_);
  return n_cached_;
}

double AnswerChannel::elapsed_ms() const { return ms_between(started_, Clock::now()); }

double AnswerChannel::first_token_ms() const {
  const std::lock_guard lock(mutex_);
  return first_token_ ? ms_between(started_, *first_token_) : 0;
}

}  // namespace onebit
