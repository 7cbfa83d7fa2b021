// One step of drafting, 100,000 times, without a model: drafts come from the walk of the candidate selector over fixed
// scores, the target's rows from a table. How often each outcome (the number of accepted drafts and all tokens of the
// step) occurs is compared with its probability.
#include "engine/verify.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "support/devices.h"
#include "support/op_rig.h"
#include "support/target_distribution.h"

namespace onebit::test {
namespace {

constexpr int32_t kVocab = 8, kCandidates = 5, kDrafts = 2, kRank = 3;
constexpr int32_t kTokens = kVocab + kDrafts;  // with one for each drafted position
constexpr size_t kSteps = 100000, kAtOnce = 50;

using Ids = std::vector<int32_t>;
using Table = std::vector<std::vector<double>>;  // [row][token]

struct Silent : Listener {
  bool on_token(const TokenEvent&) override { return true; }
  void on_finish(FinishReason, const Statistics&, const std::string&) override {}
};

/// A drafter's last layer: candidates of position i are the likeliest of `logits[i]`; their scores depend on the token
/// before by predecessor . gamma . successor.
class FixedDrafter {
 public:
  FixedDrafter() : rig_("drafter", kAtOnce * (kDrafts + 1)) {
    const auto table = [&](int32_t n, int32_t width, float scale) {
      return random_values(rig_.random(), n * width, scale);
    };
    // Row kVocab + i is what the i-th drafted position is embedded as; those before belong to anchors.
    logits_ = table(kTokens, kVocab, 1.5f), gamma_ = table(kTokens, kRank, 1);
    predecessor_ = table(kTokens, kRank, 1), successor_ = table(kTokens, kRank, 1);
    const auto [candidates, unary] = rig_.plan.top_k(rig_.plan.gather_rows(rig_.feed(kVocab, logits_)), kCandidates);
    const Plan::Walk walk =
        rig_.plan.select_walk(candidates, unary, rig_.plan.gather_rows(rig_.feed(kRank, gamma_)),
                              rig_.floats({kTokens, kRank}, predecessor_), rig_.floats({kTokens, kRank}, successor_));
    rig_.check("ids", walk.ids);
    rig_.check("confidence", walk.confidence);
    rig_.check("scores", walk.scores);
    rig_.finish();
  }

  void load(Backend& backend) {
    for (const TestWeight& weight : rig_.weights()) backend.load(weight.weight);
    pool_ = backend.make_states({}, {});
    StatePool* const pools[] = {pool_.get()};
    program_ = backend.compile(rig_.plan, pools, rig_.limits);
  }

  /// kDrafts tokens for each seed, drawn behind `anchor` as the answer's first ones.
  Ids draft(int32_t anchor, float temperature, std::span<const uint64_t> seeds) {
    std::vector<Sequence> sequences;
    Ids tokens, outputs;
    for (const uint64_t seed : seeds) {
      const auto row = static_cast<int32_t>(tokens.size());
      sequences.push_back({.row = row,
                           .n_tok = kDrafts + 1,
                           .phase = Phase::draft,
                           .temperature = temperature,
                           .seed = seed,
                           .draw = 0});
      tokens.push_back(anchor);
      for (int32_t i = 0; i < kDrafts; ++i) {
        outputs.push_back(row + i + 1);
        tokens.push_back(kVocab + i);
      }
    }
    program_->wait(program_->submit({.tokens = tokens, .sequences = sequences, .outputs = outputs}));
    Ids ids(outputs.size());
    program_->read(rig_.plan.find_output("ids"), 0, std::span<int32_t>(ids));
    return ids;
  }

  /// The distribution that the i-th draft is drawn from behind token `u`.
  std::vector<double> distribution(int32_t i, int32_t u, double temperature) const {
    const float* logits = logits_.data() + (kVocab + i) * kVocab;
    std::vector<std::pair<double, int32_t>> best;
    for (int32_t c = 0; c < kVocab; ++c) best.emplace_back(logits[c], c);
    std::sort(best.rbegin(), best.rend());
    std::vector<double> q(kVocab);
    double total = 0;
    for (int32_t j = 0; j < kCandidates; ++j) {
      auto [score, c] = best[static_cast<size_t>(j)];
      for (int32_t r = 0; r < kRank; ++r) {
        score += static_cast<double>(predecessor_[static_cast<size_t>(u * kRank + r)]) *
                 gamma_[static_cast<size_t>((kVocab + i) * kRank + r)] * successor_[static_cast<size_t>(c * kRank + r)];
      }
      total += q[static_cast<size_t>(c)] = std::exp(score / temperature);
    }
    for (double& x : q) x /= total;
    return q;
  }

 private:
  OpRig rig_;
  std::vector<float> logits_, gamma_, predecessor_, successor_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<Program> program_;
};

/// A target whose logits depend on a row's token alone.
class FixedTarget : public TargetRows {
 public:
  explicit FixedTarget(Rng& rng) : logits_(kVocab) {
    for (auto& row : logits_) {
      for (const float x : random_values(rng, kVocab, 1.5f)) row.push_back(x);
    }
  }
  const std::vector<double>& row_of(int32_t token) const { return logits_[static_cast<size_t>(token)]; }
  int32_t best_behind(int32_t token) const {
    const auto& row = row_of(token);
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }
  /// The rows of the coming step.
  void run(int32_t anchor, std::span<const int32_t> drafts) {
    tokens_ = {anchor};
    tokens_.insert(tokens_.end(), drafts.begin(), drafts.end());
  }

  int32_t next(int64_t row) override { return best_behind(tokens_[static_cast<size_t>(row)]); }
  void logits(int64_t row, std::span<float> to) override {
    const auto& from = row_of(tokens_[static_cast<size_t>(row)]);
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i]);
  }

 private:
  Table logits_;
  Ids tokens_;
};

/// Runs single steps behind one prompt.
class Steps {
 public:
  explicit Steps(const SamplingOptions& sampling)
      : pages_(4, [](int32_t, int32_t) {}), session_(0, 32, pages_, {}), scratch_(kVocab) {
    request_.prompt = {3, 1, 1, 6, 2};
    request_.sampling = sampling;
  }
  const Request& request() const { return request_; }
  int32_t anchor() const { return request_.prompt.back(); }

  /// The number of accepted drafts, then the step's tokens.
  Ids outcome(FixedTarget& target, uint64_t seed, std::span<const int32_t> drafts) {
    request_.sampling.seed = seed;
    RateWeights flat;
    flat.fill(1);
    Generation generation(1, request_, std::make_shared<Silent>(), session_, kVocab, 32, 0, {flat, flat});
    generation.drafting().tokens.assign(drafts.begin(), drafts.end());
    generation.drafting().source = DraftSource::model;
    target.run(anchor(), drafts);
    verify_draft(generation, target, 0, scratch_, kept_);
    Ids outcome = {static_cast<int32_t>(kept_.size()) - 1};
    const auto answer = generation.history().subspan(request_.prompt.size());
    outcome.insert(outcome.end(), answer.begin(), answer.end());
    return outcome;
  }

 private:
  PagePool pages_;
  Session session_;
  Request request_;
  std::vector<float> scratch_;
  Ids kept_;
};

using Outcomes = std::map<Ids, double>;

/// Adds the outcomes that begin with `tokens`, all accepted, which has the probability `reached`. Draws with shared
/// noise: token i wins for both p and q with the probability 1 / sum_j max(p_j / p_i, q_j / q_i), and for p with p_i.
void add_outcomes(const FixedDrafter& drafter, const FixedTarget& target, const Request& request, const Ids& tokens,
                  double reached, Outcomes& to) {
  Ids history = request.prompt;
  history.insert(history.end(), tokens.begin(), tokens.end());
  const auto n = static_cast<int32_t>(tokens.size());
  const std::vector<double> p = target_distribution(target.row_of(history.back()), request.sampling, history);
  const std::vector<double> q =
      n < kDrafts ? drafter.distribution(n, history.back(), request.sampling.temperature) : std::vector<double>(kVocab);
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    Ids longer = tokens;
    longer.push_back(static_cast<int32_t>(i));
    double both = 0;
    if (q[i] > 0) {
      for (size_t j = 0; j < p.size(); ++j) both += std::max(p[j] / p[i], q[j] / q[i]);
      both = 1 / both;
      add_outcomes(drafter, target, request, longer, reached * both, to);
    }
    Ids outcome = {n};
    outcome.insert(outcome.end(), longer.begin(), longer.end());
    to[outcome] += reached * (p[i] - both);
  }
}

/// Chi-square of counts against probabilities, rare outcomes taken together, in standard deviations above its mean.
double surprise(const Outcomes& expected, const Outcomes& counts) {
  double chi = 0, rest = kSteps, rest_expected = kSteps;
  int n_cell = 0;
  for (const auto& [outcome, p] : expected) {
    const double mean = p * kSteps;
    if (mean < 10) continue;
    const auto found = counts.find(outcome);
    const double n = found == counts.end() ? 0 : found->second;
    chi += (n - mean) * (n - mean) / mean;
    rest -= n, rest_expected -= mean;
    ++n_cell;
  }
  chi += (rest - rest_expected) * (rest - rest_expected) / std::max(rest_expected, 10.0);
  std::printf("chi-square %.0f of %d outcomes\n", chi, n_cell);
  return (chi - n_cell) / std::sqrt(2.0 * n_cell);
}

void expect_the_targets_outcomes(const SamplingOptions& sampling) {
  for (const Device& device : test_devices()) {
    const std::unique_ptr<Backend> backend = device.make();
    FixedDrafter drafter;
    drafter.load(*backend);
    Rng rng(4);
    FixedTarget target(rng);
    Steps steps(sampling);
    Outcomes counts, expected;
    double n_accepted = 0, mean_accepted = 0;
    for (uint64_t seed = 1; seed <= kSteps; seed += kAtOnce) {
      std::vector<uint64_t> seeds(kAtOnce);
      for (size_t i = 0; i < kAtOnce; ++i) seeds[i] = seed + i;
      const Ids drafts = drafter.draft(steps.anchor(), sampling.temperature, seeds);
      for (size_t i = 0; i < kAtOnce; ++i) {
        const Ids outcome = steps.outcome(target, seeds[i], std::span(drafts).subspan(i * kDrafts, kDrafts));
        n_accepted += outcome[0];
        ++counts[outcome];
      }
    }
    add_outcomes(drafter, target, steps.request(), {}, 1, expected);
    for (const auto& [outcome, n] : counts) EXPECT_TRUE(expected.contains(outcome)) << testing::PrintToString(outcome);
    for (const auto& [outcome, p] : expected) mean_accepted += p * outcome[0];
    EXPECT_LT(surprise(expected, counts), 4) << device.label();
    EXPECT_NEAR(n_accepted / kSteps, mean_accepted, 0.01) << device.label();
    EXPECT_GT(mean_accepted, 0.2);
  }
}

TEST(OneStep, Sampled) { expect_the_targets_outcomes(sampled()); }

TEST(OneStep, Truncated) { expect_the_targets_outcomes(truncated()); }

TEST(OneStep, BiasedMaskedAndPenalised) { expect_the_targets_outcomes(biased_masked_and_penalised()); }

/// The likeliest token at every row, whatever was drafted; a target of its own for each step.
TEST(OneStep, Greedy) {
  FixedDrafter drafter;
  const std::unique_ptr<Backend> backend = make_backend("ref", {});
  drafter.load(*backend);
  Steps steps({});
  const uint64_t seeds[] = {1};
  const Ids drafts = drafter.draft(steps.anchor(), 0, seeds);
  Rng rng(5);
  std::vector<size_t> n_by_accepted(kDrafts + 1);
  for (size_t i = 0; i < kSteps; ++i) {
    FixedTarget target(rng);
    Ids expected = {0};
    for (int32_t token = steps.anchor(); true;) {
      token = target.best_behind(token);
      expected.push_back(token);
      if (expected[0] == kDrafts || drafts[static_cast<size_t>(expected[0])] != token) break;
      ++expected[0];
    }
    ASSERT_EQ(steps.outcome(target, i, drafts), expected);
    ++n_by_accepted[static_cast<size_t>(expected[0])];
  }
  for (const size_t n : n_by_accepted) EXPECT_GT(n, kSteps / 200);
}

}  // namespace
}  // namespace onebit::test
