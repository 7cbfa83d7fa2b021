#include "engine/acceptance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace onebit {
namespace {

constexpr double kStay = 0.95;        // chance that the rate stays as it is from round to round
constexpr double kShare = 0.02;       // of all time that drafting may cost
constexpr double kFirstCredit = 0.4;  // plain steps that an answer may lose before any has been done
constexpr double kMostCredit = 10;
constexpr float kSurest = 0.995f;  // a drafter is never believed more than that

void normalise(RateWeights& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& w : weights) w /= total;
}

}  // namespace

Acceptance::Acceptance(const RateWeights& prior) : prior_(prior) {
  normalise(prior_);
  weights_ = prior_;
}

double Acceptance::survival(int64_t n) const {
  double sum = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i] * std::pow(kAcceptanceRates[i], static_cast<double>(n));
  }
  return sum;
}

void Acceptance::learn(int64_t n_tested, int64_t n_accepted, std::span<const float> untested) {
  std::array<double, kAcceptanceRates.size()> evidence{};
  for (size_t i = 0; i < evidence.size(); ++i) {
    const double yes = std::log(kAcceptanceRates[i]), no = std::log(1 - kAcceptanceRates[i]);
    evidence[i] = static_cast<double>(n_accepted) * yes + (n_accepted < n_tested ? no : 0);
    if (n_accepted < n_tested) continue;
    double reached = 1;
    for (const float confidence : untested) {
      const double c = std::min(confidence, kSurest);
      evidence[i] += reached * (c * yes + (1 - c) * no);
      reached *= c;
    }
  }
  const double most = *std::max_element(evidence.begin(), evidence.end());
  for (size_t i = 0; i < evidence.size(); ++i) weights_[i] *= std::exp(evidence[i] - most);
  normalise(weights_);
  for (size_t i = 0; i < evidence.size(); ++i) weights_[i] = kStay * weights_[i] + (1 - kStay) * prior_[i];
}

void DraftAccount::start(double n) { balance_ = std::min(kMostCredit, kFirstCredit + kShare * n); }

void DraftAccount::plain_step() { balance_ = std::min(kMostCredit, balance_ + kShare); }

void DraftAccount::round(double n_tokens, double n_extra) {
  balance_ = std::min(kMostCredit, balance_ + n_tokens - n_extra);
}

}  // namespace onebit
