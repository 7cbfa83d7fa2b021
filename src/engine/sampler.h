// From one row of logits to one token id. The n-th token of a request is drawn with the noise of draw n of its seed
// (base/gumbel.h), whether the row came from a single decode step or from a verified draft, so a seed gives the same
// text with and without a drafter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace onebit {

class Sampler {
 public:
  /// Throws Error(usage) on options outside their range, naming the option.
  Sampler(const SamplingOptions& options, int64_t n_vocab);

  /// False when the argmax of the raw logits is the answer, so that logits need not be read.
  bool needs_logits() const { return needs_logits_; }
  /// The temperature of the noise that a drafter should draw with; 0: it should take the most likely tokens.
  float draft_temperature() const { return options_.top_k == 1 ? 0 : options_.temperature; }
  /// Draws token number `index` of the answer. `history` is the prompt and the answer so far. `logits` [n_vocab] is
  /// changed.
  int32_t sample(std::span<float> logits, std::span<const int32_t> history, int64_t index);
  /// Logprob of `id` and of the most likely tokens under the unchanged logits.
  void logprobs(std::span<const float> logits, int32_t id, TokenEvent& event) const;

 private:
  struct Candidate {
    int32_t id;
    float logit;
    double p;
  };
  void apply_bias(std::span<float> logits) const;
  void apply_penalties(std::span<float> logits, std::span<const int32_t> history);
  int32_t draw(std::span<const float> logits, int64_t index);
  int32_t draw_from_all(std::span<const float> logits, int64_t index) const;
  void collect(std::span<const float> logits);
  void set_probabilities();
  void cut_typical();
  void cut_top_p();
  void cut_min_p();

  SamplingOptions options_;
  bool needs_logits_;
  std::vector<Candidate> candidates_;                // scratch, descending by logit
  std::vector<std::pair<int32_t, int32_t>> counts_;  // scratch: id, occurrences
};

/// Column of the largest value, the lowest on ties.
int32_t argmax_of(std::span<const float> values);

}  // namespace onebit
