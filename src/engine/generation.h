// One request in a slot: how far its prompt is read, its answer so far, its sampler, its counters. Turns sampled ids
// into events and decides when the answer ends. Knows no batches and no devices.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/drafting.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/session.h"

namespace onebit {

class Generation {
 public:
  /// `n_reused` prompt tokens are in the session already.
  Generation(uint64_t id, Request request, std::shared_ptr<Listener> listener, Session& session, int64_t n_vocab,
             int64_t n_ctx, int64_t n_reused, Drafting drafting);

  uint64_t id() const { return id_; }
  Session& session() { return session_; }
  Sampler& sampler() { return sampler_; }
  const Request& request() const { return request_; }

  /// Prompt tokens not evaluated yet.
  std::span<const int32_t> prompt_left() const;
  bool reading_prompt() const { return !prompt_left().empty(); }
  /// The newest token, drawn but not evaluated.
  int32_t anchor() const { return history_.back(); }
  /// Prompt and answer so far.
  std::span<const int32_t> history() const { return history_; }
  int64_t n_generated() const { return static_cast<int64_t>(history_.size() - request_.prompt.size()); }
  /// Tokens that may still be generated, the context's end included.
  int64_t n_left() const;

  Drafting& drafting() { return drafting_; }
  /// A step of this answer is done, in which so many tokens were drafted (0: a plain step) and kept, at the cost of
  /// `n_plain` plain steps.
  void count_step(int64_t n_drafted, int64_t n_accepted, double n_plain);
  void count_draft_pass() { ++statistics_.draft_passes; }
  void count_fed(int64_t n) { statistics_.draft_fed = n; }
  /// Prompt tokens that weren't reused.
  int64_t n_read() const { return statistics_.prompt_n; }
  /// How long the prompt took; 0 while it is being read.
  double prompt_ms() const { return statistics_.prompt_ms; }

  /// `n` prompt tokens were evaluated.
  void prompt_advanced(int64_t n);
  /// Takes a drawn token: reports it, or ends the answer. Returns false when the answer ended (finished() is set).
  bool take(const TokenEvent& event);
  void finish(FinishReason reason, const std::string& message = "");
  std::optional<FinishReason> finished() const { return finished_; }
  /// Tells the listener the end; nothing may be called afterwards.
  void report_finish();

 private:
  using Clock = std::chrono::steady_clock;

  uint64_t id_;
  Request request_;
  std::shared_ptr<Listener> listener_;
  Session& session_;
  Sampler sampler_;
  int64_t n_ctx_;
  int64_t n_prompt_done_;
  std::vector<int32_t> history_;
  Drafting drafting_;
  std::optional<FinishReason> finished_;
  std::string message_;
  Statistics statistics_;
  Clock::time_point started_, answer_started_;
};

}  // namespace onebit
