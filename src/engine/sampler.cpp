#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/gumbel.h"

namespace onebit {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

void check_range(const char* name, double value, double least, double most) {
  if (std::isfinite(value) && value >= least && value <= most) return;
  fail(ErrorKind::usage, "{}: expected a number from {} to {}, found {}", name, least, most, value);
}

void check(const SamplingOptions& o, int64_t n_vocab) {
  check_range("temperature", o.temperature, 0, 100);
  check_range("top_k", o.top_k, 0, std::numeric_limits<int32_t>::max());
  check_range("top_p", o.top_p, 0, 1);
  check_range("min_p", o.min_p, 0, 1);
  check_range("typical_p", o.typical_p, 0, 1);
  check_range("repeat_penalty", o.repeat_penalty, 1e-3, 1e3);
  check_range("presence_penalty", o.presence_penalty, -100, 100);
  check_range("frequency_penalty", o.frequency_penalty, -100, 100);
  check_range("repeat_last_n", o.repeat_last_n, -1, std::numeric_limits<int32_t>::max());
  for (const auto& [id, bias] : o.logit_bias) {
    check_range("logit_bias: token id", id, 0, static_cast<double>(n_vocab - 1));
    if (std::isnan(bias)) fail(ErrorKind::usage, "logit_bias: expected a number for token {}, found NaN", id);
  }
}

bool penalises(const SamplingOptions& o) {
  return o.repeat_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0;
}

}  // namespace

int32_t argmax_of(std::span<const float> values) {
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

Sampler::Sampler(const SamplingOptions& options, int64_t n_vocab) : options_(options) {
  check(options, n_vocab);
  needs_logits_ = options.temperature > 0 || penalises(options) || !options.logit_bias.empty() ||
                  !options.suppressed.empty() || options.n_logprobs >= 0;
  if (options.temperature > 0) candidates_.reserve(static_cast<size_t>(n_vocab));
}

int32_t Sampler::sample(std::span<float> logits, std::span<const int32_t> history, int64_t index) {
  apply_bias(logits);
  apply_penalties(logits, history);
  if (options_.temperature == 0 || options_.top_k == 1) return argmax_of(logits);
  return draw(logits, index);
}

void Sampler::apply_bias(std::span<float> logits) const {
  for (const auto& [id, bias] : options_.logit_bias) logits[static_cast<size_t>(id)] += bias;
  for (int32_t id : options_.suppressed) {
    if (id >= 0 && id < static_cast<int32_t>(logits.size())) logits[static_cast<size_t>(id)] = kBanned;
  }
}

void Sampler::apply_penalties(std::span<float> logits, std::span<const int32_t> history) {
  if (!penalises(options_)) return;
  if (options_.repeat_last_n >= 0) {
    history = history.last(std::min(history.size(), static_cast<size_t>(options_.repeat_last_n)));
  }
  counts_.clear();
  for (int32_t id : history) counts_.emplace_back(id, 1);
  std::sort(counts_.begin(), counts_.end());
  for (size_t begin = 0, end = 0; begin < counts_.size(); begin = end) {
    while (end < counts_.size() && counts_[end].first == counts_[begin].first) ++end;
    float& logit = logits[static_cast<size_t>(counts_[begin].first)];
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    logit -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(end - begin);
  }
}

int32_t Sampler::draw(std::span<const float> logits, int64_t index) {
  const bool truncates = options_.top_k > 0 || options_.top_p < 1 || options_.min_p > 0 || options_.typical_p < 1;
  if (!truncates) return draw_from_all(logits, index);
  collect(logits);
  set_probabilities();
  cut_typical();
  cut_top_p();
  cut_min_p();
  const auto score = [&](const Candidate& c) {
    return static_cast<double>(c.logit) / options_.temperature + gumbel(options_.seed, index, c.id);
  };
  const Candidate* best = &candidates_[0];
  for (const Candidate& c : candidates_) {
    if (score(c) > score(*best)) best = &c;
  }
  return best->id;
}

/// Noise is cheap to bound, so its logarithms are taken for few tokens.
int32_t Sampler::draw_from_all(std::span<const float> logits, int64_t index) const {
  auto best = static_cast<size_t>(argmax_of(logits));
  const double scale = 1 / static_cast<double>(options_.temperature);
  const auto noise = [&](size_t i) { return noise_bits(options_.seed, index, static_cast<int32_t>(i)); };
  double most = logits[best] * scale + gumbel_of(noise(best));
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t bits = noise(i);
    const double base = logits[i] * scale;
    if (!(base + gumbel_bound(bits) > most)) continue;
    const double score = base + gumbel_of(bits);
    if (!(score > most)) continue;
    most = score;
    best = i;
  }
  return static_cast<int32_t>(best);
}

/// The top_k most likely tokens (or all that are not banned), descending.
void Sampler::collect(std::span<const float> logits) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const size_t k = options_.top_k > 0 ? static_cast<size_t>(options_.top_k) : logits.size();
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kBanned) continue;
    const bool full = candidates_.size() == k;
    if (full && !(logits[i] > candidates_.front().logit)) continue;  // the heap's first is the least likely
    if (full) {
      std::pop_heap(candidates_.begin(), candidates_.end(), before);
      candidates_.pop_back();
    }
    candidates_.push_back({static_cast<int32_t>(i), logits[i], 0});
    if (k < logits.size()) std::push_heap(candidates_.begin(), candidates_.end(), before);
  }
  if (candidates_.empty()) candidates_.push_back({argmax_of(logits), 0, 1});
  std::sort(candidates_.begin(), candidates_.end(), before);
}

void Sampler::set_probabilities() {
  double total = 0;
  for (Candidate& c : candidates_) total += c.p = std::exp(static_cast<double>(c.logit) - candidates_[0].logit);
  for (Candidate& c : candidates_) c.p /= total;
}

/// Locally typical sampling: keeps the tokens whose surprise is closest to the entropy, up to a mass of typical_p.
void Sampler::cut_typical() {
  if (options_.typical_p >= 1) return;
  double entropy = 0;
  for (const Candidate& c : candidates_) entropy -= c.p > 0 ? c.p * std::log(c.p) : 0;
  const auto distance = [&](const Candidate& c) { return std::abs(-std::log(std::max(c.p, 1e-300)) - entropy); };
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [&](const Candidate& a, const Candidate& b) { return distance(a) < distance(b); });
  double mass = 0;
  size_t n = 0;
  while (n < candidates_.size() && mass < options_.typical_p) mass += candidates_[n++].p;
  candidates_.resize(std::max<size_t>(n, 1));
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  set_probabilities();
}

void Sampler::cut_top_p() {
  if (options_.top_p >= 1) return;
  double mass = 0;
  size_t n = 0;
  while (n < candidates_.size() && (n == 0 || mass < options_.top_p)) mass += candidates_[n++].p;
  candidates_.resize(n);
}

void Sampler::cut_min_p() {
  if (options_.min_p <= 0) return;
  const double least = candidates_[0].p * options_.min_p;
  const auto end =
      std::find_if(candidates_.begin() + 1, candidates_.end(), [&](const Candidate& c) { return c.p < least; });
  candidates_.erase(end, candidates_.end());
}

void Sampler::logprobs(std::span<const float> logits, int32_t id, TokenEvent& event) const {
  const float top = logits[static_cast<size_t>(argmax_of(logits))];
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit) - top);
  const double log_total = std::log(total) + top;
  event.logprob = static_cast<float>(logits[static_cast<size_t>(id)] - log_total);
  const auto n = static_cast<size_t>(std::clamp<int64_t>(options_.n_logprobs, 0, static_cast<int64_t>(logits.size())));
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(n), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] != logits[static_cast<size_t>(b)]
               ? logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]
               : a < b;
  });
  for (size_t i = 0; i < n; ++i) {
    event.top.push_back({ids[i], static_cast<float>(logits[static_cast<size_t>(ids[i])] - log_total)});
  }
}

}  // namespace onebit
