// How many tokens to draft and how many of them to verify, for all answers of a step together: the lengths with the
// most expected tokens a millisecond.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/step_costs.h"

namespace onebit {

/// One answer's drafts: chances[k] that its first k + 1 drafted tokens are all accepted, never rising.
struct DraftOffer {
  std::span<const double> chances;
  int64_t n_taken = 0;  // the choice
};

/// What a step does besides drafts.
struct StepBase {
  int64_t n_answers = 0;  // each brings its own row and gains its own token
  int64_t n_prompt = 0;   // rows of prompts in the same batch
};

/// Milliseconds of drafting the lengths that the offers have taken.
using DraftTime = std::function<double(std::span<const DraftOffer>)>;

/// Chooses n_taken of all offers before anything is drafted: the most tokens a millisecond, `draft_time` included.
/// Returns that rate; plain_rate() where nothing is taken, which drafting has to exceed by `margin`.
double choose_drafts(std::span<DraftOffer> offers, const StepBase& base, const CostCurve& target,
                     const DraftTime& draft_time, double margin);
/// Chooses n_taken once drafts are there: each further row must be worth its time at `rate` tokens a millisecond.
void choose_rows(std::span<DraftOffer> offers, const StepBase& base, const CostCurve& target, double rate);
double plain_rate(const StepBase& base, const CostCurve& target);

}  // namespace onebit
