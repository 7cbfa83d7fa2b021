// The sampler against distributions computed by hand, and its draws against those distributions (chi-square).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "engine/sampler.h"

namespace onebit::test {
namespace {

const std::vector<float> kLogits = {2.0f, 1.0f, 0.5f, 0.0f, -1.0f, -3.0f};

/// Share of each id over `n` draws.
std::vector<double> shares(const SamplingOptions& options, std::vector<int32_t> history = {}, int n = 100000) {
  Sampler sampler(options, static_cast<int64_t>(kLogits.size()));
  std::vector<double> counts(kLogits.size());
  for (int i = 0; i < n; ++i) {
    std::vector<float> logits = kLogits;
    ++counts[static_cast<size_t>(sampler.sample(logits, history, i))];
  }
  for (double& c : counts) c /= n;
  return counts;
}

std::vector<double> softmax(std::vector<float> logits, double temperature = 1) {
  std::vector<double> p;
  double total = 0;
  for (float l : logits) total += std::exp(l / temperature);
  for (float l : logits) p.push_back(std::exp(l / temperature) / total);
  return p;
}

/// Chi-square of 100,000 draws against p; 5 degrees of freedom stay below 30 with probability 1 - 1.5e-5.
void expect_distribution(const std::vector<double>& observed, const std::vector<double>& expected) {
  double chi = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(observed[i], 0) << "token " << i << " can't be drawn";
    } else {
      chi += 1e5 * (observed[i] - expected[i]) * (observed[i] - expected[i]) / expected[i];
    }
  }
  EXPECT_LT(chi, 30);
}

/// p restricted to `kept` and renormalised.
std::vector<double> only(std::vector<double> p, const std::vector<size_t>& kept) {
  std::vector<double> q(p.size());
  double total = 0;
  for (size_t i : kept) total += p[i];
  for (size_t i : kept) q[i] = p[i] / total;
  return q;
}

SamplingOptions warm(float temperature = 1) {
  SamplingOptions options;
  options.temperature = temperature;
  options.seed = 7;
  return options;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdOnTies) {
  Sampler sampler({}, 3);
  EXPECT_FALSE(sampler.needs_logits());
  std::vector<float> tie = {1, 5, 5};
  EXPECT_EQ(sampler.sample(tie, {}, 0), 1);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  expect_distribution(shares(warm()), softmax(kLogits));
  expect_distribution(shares(warm(0.5f)), softmax(kLogits, 0.5));
}

TEST(Sampler, TopKTopPAndMinPCutTheTail) {
  SamplingOptions k = warm();
  k.top_k = 2;
  expect_distribution(shares(k), only(softmax(kLogits), {0, 1}));
  SamplingOptions p = warm();
  p.top_p = 0.8f;  // 0.556 + 0.204 + 0.124 reach it with the third
  expect_distribution(shares(p), only(softmax(kLogits), {0, 1, 2}));
  SamplingOptions m = warm();
  m.min_p = 0.2f;  // exp(-1.5) = 0.22 stays, exp(-2) = 0.14 goes
  expect_distribution(shares(m), only(softmax(kLogits), {0, 1, 2}));
  SamplingOptions one = warm();
  one.top_p = 0;
  expect_distribution(shares(one), only(softmax(kLogits), {0}));
}

TEST(Sampler, TypicalKeepsTokensOfAverageSurprise) {
  const std::vector<double> p = softmax(kLogits);
  double entropy = 0;
  for (double x : p) entropy -= x * std::log(x);
  std::map<double, size_t> order;
  for (size_t i = 0; i < p.size(); ++i) order[std::abs(-std::log(p[i]) - entropy)] = i;
  std::vector<size_t> kept;
  double mass = 0;
  for (const auto& [distance, i] : order) {
    if (mass >= 0.6) break;
    kept.push_back(i);
    mass += p[i];
  }
  SamplingOptions options = warm();
  options.typical_p = 0.6f;
  expect_distribution(shares(options), only(p, kept));
}

TEST(Sampler, PenaltiesAndBiasChangeTheLogits) {
  SamplingOptions options = warm();
  options.repeat_penalty = 2;
  options.presence_penalty = 0.5f;
  options.frequency_penalty = 0.25f;
  std::vector<float> expected = kLogits;
  expected[0] = 2.0f / 2 - 0.5f - 0.25f * 3;  // three times in the history
  expected[4] = -1.0f * 2 - 0.5f - 0.25f;     // once, negative: multiplied
  expect_distribution(shares(options, {0, 0, 4, 0}), softmax(expected));
  options.repeat_last_n = 1;
  std::vector<float> last = kLogits;
  last[0] = 2.0f / 2 - 0.5f - 0.25f;
  expect_distribution(shares(options, {4, 0}), softmax(last));
  SamplingOptions bias = warm();
  bias.logit_bias = {{5, 4.0f}, {0, -std::numeric_limits<float>::infinity()}};
  std::vector<float> biased = kLogits;
  biased[5] += 4;
  expect_distribution(shares(bias), only(softmax(biased), {1, 2, 3, 4, 5}));
  SamplingOptions none = warm();
  none.suppressed = {0, 1, 2, 3, 4};
  expect_distribution(shares(none), only(softmax(kLogits), {5}));
}

TEST(Sampler, LogprobsAreOfTheUnchangedLogits) {
  SamplingOptions options = warm(0.1f);
  options.n_logprobs = 2;
  Sampler sampler(options, static_cast<int64_t>(kLogits.size()));
  TokenEvent event;
  sampler.logprobs(kLogits, 3, event);
  const std::vector<double> p = softmax(kLogits);
  EXPECT_NEAR(event.logprob, std::log(p[3]), 1e-6);
  ASSERT_EQ(event.top.size(), 2u);
  EXPECT_EQ(event.top[1].id, 1);
  EXPECT_NEAR(event.top[1].logprob, std::log(p[1]), 1e-6);
}

TEST(Sampler, OptionsOutOfRangeAreRefusedByName) {
  const auto refused = [](auto change) {
    SamplingOptions options;
    change(options);
    try {
      Sampler sampler(options, 10);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused([](auto& o) { o.temperature = std::nanf(""); }).find("temperature"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.top_p = 1.5f; }).find("top_p"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.top_k = -1; }).find("top_k"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.repeat_penalty = 0; }).find("repeat_penalty"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.logit_bias = {{10, 1.0f}}; }).find("logit_bias"), std::string::npos);
}

}  // namespace
}  // namespace onebit::test
