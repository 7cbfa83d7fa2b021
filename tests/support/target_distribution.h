// What a sampler should draw from, written down a second time from the documented order of its steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace onebit::test {

/// The distribution behind `history` for a row of logits (or logprobs) [n_vocab]: bias, penalties (not repeat_penalty),
/// top-k, top-p, temperature > 0.
inline std::vector<double> target_distribution(std::span<const double> logits, const SamplingOptions& o,
                                               std::span<const int32_t> history) {
  history = history.last(std::min(history.size(), static_cast<size_t>(o.repeat_last_n)));
  std::vector<std::pair<double, int32_t>> scores;
  for (int32_t token = 0; token < static_cast<int32_t>(logits.size()); ++token) {
    double score = logits[static_cast<size_t>(token)];
    for (const auto& [id, bias] : o.logit_bias) score += id == token ? bias : 0;
    const auto n = std::count(history.begin(), history.end(), token);
    if (n > 0) score -= o.presence_penalty + o.frequency_penalty * static_cast<double>(n);
    const bool banned = std::find(o.suppressed.begin(), o.suppressed.end(), token) != o.suppressed.end();
    if (!banned) scores.emplace_back(score, token);
  }
  std::sort(scores.rbegin(), scores.rend());
  if (o.top_k > 0) scores.resize(std::min(scores.size(), static_cast<size_t>(o.top_k)));
  const double most = scores[0].first;
  double whole = 0, mass = 0, total = 0;
  for (const auto& [score, id] : scores) whole += std::exp(score - most);
  std::vector<double> p(logits.size());
  for (const auto& [score, id] : scores) {
    if (mass >= o.top_p) break;
    mass += std::exp(score - most) / whole;
    total += p[static_cast<size_t>(id)] = std::exp((score - most) / o.temperature);
  }
  for (double& x : p) x /= total;
  return p;
}

/// The settings under which drafting must not change what is drawn.
inline SamplingOptions sampled() {
  SamplingOptions sampling;
  sampling.temperature = 0.9f;
  return sampling;
}

inline SamplingOptions truncated() {
  SamplingOptions sampling;
  sampling.temperature = 1.2f;
  sampling.top_k = 6;
  sampling.top_p = 0.9f;
  return sampling;
}

inline SamplingOptions biased_masked_and_penalised() {
  SamplingOptions sampling;
  sampling.temperature = 0.8f;
  sampling.logit_bias = {{3, 1.5f}, {7, -2.0f}};
  sampling.suppressed = {5};
  sampling.presence_penalty = 0.4f;
  sampling.frequency_penalty = 0.2f;
  sampling.repeat_last_n = 6;
  sampling.top_k = 8;
  return sampling;
}

}  // namespace onebit::test
