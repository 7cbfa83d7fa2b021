#include "engine/generation.h"

#include <algorithm>
#include <utility>

namespace onebit {
namespace {

double ms_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      break;
  }
  return "error";
}

Generation::Generation(uint64_t id, Request request, std::shared_ptr<Listener> listener, Session& session,
                       int64_t n_vocab, int64_t n_ctx, int64_t n_reused, Drafting drafting)
    : id_(id),
      request_(std::move(request)),
      listener_(std::move(listener)),
      session_(session),
      sampler_(request_.sampling, n_vocab),
      n_ctx_(n_ctx),
      n_prompt_done_(n_reused),
      drafting_(std::move(drafting)),
      started_(Clock::now()),
      answer_started_(started_) {
  history_.reserve(static_cast<size_t>(n_ctx) + 1);
  history_ = request_.prompt;
  statistics_.slot = session.slot();
  statistics_.cache_n = n_reused;
  statistics_.prompt_n = static_cast<int64_t>(request_.prompt.size()) - n_reused;
  listener_->on_prompt(n_reused, static_cast<int64_t>(request_.prompt.size()));
}

std::span<const int32_t> Generation::prompt_left() const {
  return std::span(request_.prompt).subspan(static_cast<size_t>(n_prompt_done_));
}

int64_t Generation::n_left() const {
  const int64_t in_context = n_ctx_ - static_cast<int64_t>(history_.size());
  return request_.max_tokens < 0 ? in_context : std::min(in_context, request_.max_tokens - n_generated());
}

void Generation::count_step(int64_t n_drafted, int64_t n_accepted, double n_plain) {
  statistics_.plain_steps_worth += n_plain;
  auto& by_length = statistics_.steps_by_length;
  if (static_cast<int64_t>(by_length.size()) <= n_drafted) by_length.resize(static_cast<size_t>(n_drafted) + 1);
  ++by_length[static_cast<size_t>(n_drafted)];
  if (n_drafted == 0) return;
  statistics_.rounds += 1;
  if (drafting_.source == DraftSource::lookup) {
    statistics_.lookup_n += n_drafted;
    statistics_.lookup_n_accepted += n_accepted;
  }
  statistics_.draft_n += n_drafted;
  statistics_.draft_n_accepted += n_accepted;
  statistics_.accepted_per_round.push_back(static_cast<int32_t>(n_accepted));
  auto& per_position = statistics_.accepted_per_position;
  if (static_cast<int64_t>(per_position.size()) < n_drafted) per_position.resize(static_cast<size_t>(n_drafted));
  for (int64_t i = 0; i < n_accepted; ++i) ++per_position[static_cast<size_t>(i)];
}

void Generation::prompt_advanced(int64_t n) {
  n_prompt_done_ += n;
  listener_->on_prompt(n_prompt_done_, static_cast<int64_t>(request_.prompt.size()));
}

bool Generation::take(const TokenEvent& event) {
  if (n_generated() == 0) {
    answer_started_ = Clock::now();
    statistics_.prompt_ms = ms_between(started_, answer_started_);
  }
  const auto& stops = request_.stop_ids;
  if (std::find(stops.begin(), stops.end(), event.id) != stops.end()) {
    finish(FinishReason::stop);
    return false;
  }
  history_.push_back(event.id);
  if (!listener_->on_token(event)) {
    finish(FinishReason::stop);
  } else if (n_left() <= 0) {
    finish(FinishReason::length);
  }
  return !finished_;
}

void Generation::finish(FinishReason reason, const std::string& message) {
  if (finished_) return;
  finished_ = reason;
  message_ = message;
}

void Generation::report_finish() {
  statistics_.predicted_n = n_generated();
  if (statistics_.predicted_n > 0) statistics_.predicted_ms = ms_between(answer_started_, Clock::now());
  listener_->on_finish(*finished_, statistics_, message_);
}

}  // namespace onebit
