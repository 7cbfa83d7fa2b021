// Counters over the life of the server, and their Prometheus text.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"

namespace onebit {

/// All methods may be called from any thread.
class Metrics {
 public:
  /// A request has ended. `first_token_ms`: from its arrival; 0: there was none.
  void count(FinishReason reason, const Statistics& statistics, double first_token_ms);
  /// A request was refused or failed with this HTTP status.
  void count_error(int status);

  /// The counters with llama-server's names under "llamacpp:", what it doesn't have under "onebit:".
  std::string text(const std::vector<SlotStatus>& slots, int64_t n_queued, const PrefixCacheStatus& cache) const;

 private:
  static constexpr std::array<double, 10> kSeconds{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120};

  mutable std::mutex mutex_;
  int64_t n_prompt_ = 0, n_cached_ = 0, n_predicted_ = 0, n_draft_ = 0, n_accepted_ = 0, n_rounds_ = 0, n_passes_ = 0,
          n_plain_ = 0;
  std::vector<int64_t> n_accepted_at_;  // by position in a draft
  double prompt_ms_ = 0, predicted_ms_ = 0;
  std::array<int64_t, 4> finished_{};                       // by FinishReason
  int64_t n_refused_ = 0, n_failed_ = 0;                    // replies with 4xx, 5xx
  std::array<int64_t, kSeconds.size() + 1> first_token_{};  // by the first of kSeconds that it is within
  double first_token_sum_ = 0;
};

}  // namespace onebit
