// What is believed about the drafts of one answer: how likely a drafted token is accepted when all before it were, and
// how many tokens drafting may still cost. The rate changes within an answer (a list, then a name), so it is one of a
// few rates that may switch after every round, and what is known is a weight for each.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace onebit {

inline constexpr std::array<double, 7> kAcceptanceRates = {0.05, 0.3, 0.55, 0.75, 0.88, 0.95, 0.99};
using RateWeights = std::array<double, kAcceptanceRates.size()>;

class Acceptance {
 public:
  explicit Acceptance(const RateWeights& prior);

  /// Chance that the first `n` drafted tokens are all accepted.
  double survival(int64_t n) const;
  /// After a round: of `n_tested` tokens the first `n_accepted` were accepted. `untested`: the drafter's own confidence
  /// of the tokens behind those, which were not put to the test; it counts as a weaker witness.
  void learn(int64_t n_tested, int64_t n_accepted, std::span<const float> untested);
  const RateWeights& weights() const { return weights_; }

 private:
  RateWeights prior_, weights_;
};

/// The account of one answer, in tokens of plain decoding. Drafting may spend a small share of the time before it has
/// gained anything; what it gains is credited and may be spent again. When the account is empty only plain steps
/// follow until their share has filled it.
class DraftAccount {
 public:
  /// A prompt was read in the time of `n` plain steps.
  void start(double n);
  void plain_step();
  /// A round gained `n_tokens` beyond the token of a plain step and cost the time of `n_extra` more plain steps.
  void round(double n_tokens, double n_extra);
  /// Whether a round may be tried that is expected to pay, or one that is not.
  bool allows(bool pays) const { return balance_ > (pays ? -kOverdraft : 0); }
  /// Plain steps that one round may cost for nothing.
  double most_loss() const { return balance_ + kOverdraft; }

 private:
  static constexpr double kOverdraft = 0.8;
  double balance_ = 0;
};

}  // namespace onebit
