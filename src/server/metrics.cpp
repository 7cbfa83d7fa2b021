// Counting under one mutex; a scrape formats a copy of the numbers.
#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace onebit {

namespace {

constexpr std::array<const char*, 4> kReasons{"stop", "length", "cancelled", "error"};

void add(std::string& text, const char* type, const char* name, const char* help, double value) {
  fmt::format_to(std::back_inserter(text), "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
}

double rate(int64_t n, double ms) { return ms > 0 ? 1e3 * static_cast<double>(n) / ms : 0; }

}  // namespace

void Metrics::count(FinishReason reason, const Statistics& s, double first_token_ms) {
  const std::lock_guard lock(mutex_);
  ++finished_[static_cast<size_t>(reason)];
  n_prompt_ += s.prompt_n;
  n_cached_ += s.cache_n;
  prompt_ms_ += s.prompt_ms;
  n_predicted_ += s.predicted_n;
  predicted_ms_ += s.predicted_ms;
  n_draft_ += s.draft_n;
  n_accepted_ += s.draft_n_accepted;
  n_rounds_ += s.rounds;
  n_passes_ += s.draft_passes;
  n_accepted_at_.resize(std::max(n_accepted_at_.size(), s.accepted_per_position.size()));
  for (size_t i = 0; i < s.accepted_per_position.size(); ++i) n_accepted_at_[i] += s.accepted_per_position[i];
  n_plain_ += s.steps_by_length.empty() ? 0 : s.steps_by_length.front();
  if (first_token_ms <= 0) return;
  const double seconds = first_token_ms / 1e3;
  const auto bucket = std::lower_bound(kSeconds.begin(), kSeconds.end(), seconds);
  ++first_token_[static_cast<size_t>(bucket - kSeconds.begin())];
  first_token_sum_ += seconds;
}

void Metrics::count_error(int status) {
  const std::lock_guard lock(mutex_);
  ++(status < 500 ? n_refused_ : n_failed_);
}

std::string Metrics::text(const std::vector<SlotStatus>& slots, int64_t n_queued,
                          const PrefixCacheStatus& cache) const {
  const auto busy = std::count_if(slots.begin(), slots.end(), [](const SlotStatus& s) { return s.request != 0; });
  const std::lock_guard lock(mutex_);
  std::string t;
  const auto counter = [&](const char* name, const char* help, double value) { add(t, "counter", name, help, value); };
  const auto gauge = [&](const char* name, const char* help, double value) { add(t, "gauge", name, help, value); };
  counter("llamacpp:prompt_tokens_total", "Prompt tokens evaluated.", static_cast<double>(n_prompt_));
  counter("llamacpp:prompt_seconds_total", "Time spent on prompts.", prompt_ms_ / 1e3);
  counter("llamacpp:tokens_predicted_total", "Tokens generated.", static_cast<double>(n_predicted_));
  counter("llamacpp:tokens_predicted_seconds_total", "Time spent on generation.", predicted_ms_ / 1e3);
  gauge("llamacpp:prompt_tokens_seconds", "Average prompt speed in tokens per second.", rate(n_prompt_, prompt_ms_));
  gauge("llamacpp:predicted_tokens_seconds", "Average generation speed in tokens per second.",
        rate(n_predicted_, predicted_ms_));
  gauge("llamacpp:requests_processing", "Requests in slots.", static_cast<double>(busy));
  gauge("llamacpp:requests_deferred", "Requests that wait for a slot.", static_cast<double>(n_queued));
  counter("onebit:prompt_tokens_cached_total", "Prompt tokens reused.", static_cast<double>(n_cached_));
  counter("onebit:draft_tokens_total", "Drafted tokens that were verified.", static_cast<double>(n_draft_));
  counter("onebit:draft_tokens_accepted_total", "Drafted tokens that were kept.", static_cast<double>(n_accepted_));
  counter("onebit:draft_rounds_total", "Verify steps with drafted tokens.", static_cast<double>(n_rounds_));
  gauge("onebit:draft_tokens_per_step", "Tokens gained by a verify step on average, the model's own included.",
        n_rounds_ > 0 ? 1 + static_cast<double>(n_accepted_) / static_cast<double>(n_rounds_) : 0);
  counter("onebit:draft_passes_total", "Passes of the drafter.", static_cast<double>(n_passes_));
  counter("onebit:plain_steps_total", "Steps without drafted tokens.", static_cast<double>(n_plain_));
  counter("onebit:http_refused_total", "Replies with a 4xx status.", static_cast<double>(n_refused_));
  counter("onebit:http_failed_total", "Replies with a 5xx status.", static_cast<double>(n_failed_));
  gauge("onebit:prefix_cache_entries", "States that prompts may start from.", static_cast<double>(cache.n_entries));
  gauge("onebit:prefix_cache_bytes", "Memory that they hold, pages shared with slots included.",
        static_cast<double>(cache.bytes));
  gauge("onebit:prefix_cache_budget_bytes", "Memory reserved for them at load, beside the slots' own.",
        static_cast<double>(cache.budget_bytes));
  gauge("onebit:prefix_cache_limit_bytes", "The most they can hold: the budget and the pages of the slots.",
        static_cast<double>(cache.limit_bytes));
  counter("onebit:prefix_cache_saved_total", "States kept.", static_cast<double>(cache.n_saved));
  counter("onebit:prefix_cache_evicted_total", "States dropped to make room.", static_cast<double>(cache.n_evicted));
  counter("onebit:prefix_cache_hits_total", "Requests that began with tokens evaluated before.",
          static_cast<double>(cache.n_hits));
  counter("onebit:prefix_cache_misses_total", "Requests that began from nothing.", static_cast<double>(cache.n_misses));
  auto to = std::back_inserter(t);
  fmt::format_to(to, "# HELP onebit:draft_accepted_total Verify steps that kept the drafted token of this position.\n");
  fmt::format_to(to, "# TYPE onebit:draft_accepted_total counter\n");
  for (size_t i = 0; i < n_accepted_at_.size(); ++i) {
    fmt::format_to(to, "onebit:draft_accepted_total{{position=\"{}\"}} {}\n", i + 1, n_accepted_at_[i]);
  }
  fmt::format_to(to,
                 "# HELP onebit:requests_total Requests by how they ended.\n# TYPE onebit:requests_total counter\n");
  for (size_t i = 0; i < kReasons.size(); ++i) {
    fmt::format_to(to, "onebit:requests_total{{finish_reason=\"{}\"}} {}\n", kReasons[i], finished_[i]);
  }
  fmt::format_to(to, "# HELP onebit:time_to_first_token_seconds From a request's arrival to its first token.\n");
  fmt::format_to(to, "# TYPE onebit:time_to_first_token_seconds histogram\n");
  int64_t below = 0;
  for (size_t i = 0; i < kSeconds.size(); ++i) {
    below += first_token_[i];
    fmt::format_to(to, "onebit:time_to_first_token_seconds_bucket{{le=\"{}\"}} {}\n", kSeconds[i], below);
  }
  below += first_token_.back();
  fmt::format_to(to, "onebit:time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {}\n", below);
  fmt::format_to(to, "onebit:time_to_first_token_seconds_sum {}\nonebit:time_to_first_token_seconds_count {}\n",
                 first_token_sum_, below);
  return t;
}

}  // namespace onebit
