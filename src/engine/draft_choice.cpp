#include "engine/draft_choice.h"

#include <algorithm>

namespace onebit {
namespace {

double target_ms(const StepBase& base, const CostCurve& target, int64_t n_draft) {
  return target.at(static_cast<double>(base.n_answers + base.n_prompt + n_draft));
}

/// Takes one more token from the offer whose next one is most likely accepted. Returns its chance, 0 when none is left.
double take_next(std::span<DraftOffer> offers) {
  DraftOffer* best = nullptr;
  double chance = 0;
  for (DraftOffer& offer : offers) {
    const auto next = static_cast<size_t>(offer.n_taken);
    if (next < offer.chances.size() && offer.chances[next] > chance) {
      best = &offer;
      chance = offer.chances[next];
    }
  }
  if (best) ++best->n_taken;
  return chance;
}

/// Takes tokens one by one in order of their chances and keeps the prefix of that order with the largest worth.
/// worth(expected tokens, drafted tokens).
template <typename Worth>
double take_best(std::span<DraftOffer> offers, double n_answers, Worth worth) {
  for (DraftOffer& offer : offers) offer.n_taken = 0;
  double expected = n_answers, best = worth(expected, 0);
  int64_t n_best = 0;
  for (int64_t n = 1;; ++n) {
    const double chance = take_next(offers);
    if (chance <= 0) break;
    expected += chance;
    const double value = worth(expected, n);
    if (value <= best) continue;
    best = value;
    n_best = n;
  }
  for (DraftOffer& offer : offers) offer.n_taken = 0;
  for (int64_t n = 0; n < n_best; ++n) take_next(offers);
  return best;
}

}  // namespace

double plain_rate(const StepBase& base, const CostCurve& target) {
  return static_cast<double>(base.n_answers) / target_ms(base, target, 0);
}

double choose_drafts(std::span<DraftOffer> offers, const StepBase& base, const CostCurve& target,
                     const DraftTime& draft_time, double margin) {
  const double plain = plain_rate(base, target);
  const double best = take_best(offers, static_cast<double>(base.n_answers), [&](double expected, int64_t n) {
    if (n == 0) return plain * margin;
    return expected / (target_ms(base, target, n) + draft_time(offers));
  });
  return std::max(best, plain);
}

void choose_rows(std::span<DraftOffer> offers, const StepBase& base, const CostCurve& target, double rate) {
  take_best(offers, static_cast<double>(base.n_answers),
            [&](double expected, int64_t n) { return expected - rate * target_ms(base, target, n); });
}

}  // namespace onebit
