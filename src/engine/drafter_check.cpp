#include "engine/drafter_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/state.h"

namespace onebit {

const char* const kDrafterCheckText =
    "def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n    return a + b\n\n\n"
    "def subtract(a, b):\n    \"\"\"Return the difference of a and b.\"\"\"\n    return a - b\n\n\n"
    "def multiply(a, b):\n    \"\"\"Return the product";

namespace {

constexpr int64_t kTokens = 40;      // that the target writes
constexpr int64_t kMostPrompt = 72;  // with those, what the taps' rows of any engine have room for
constexpr double kLeastMean = 0.4;   // drafted tokens accepted behind each, of a drafter that is of any use
constexpr double kSureness = 1;      // standard errors by which a neighbour is better; of right states it is worse

/// One pass after another over the same text.
class Trials {
 public:
  Trials(Engine& engine, Session& session, std::span<const int32_t> prompt, int64_t every)
      : engine_(engine), session_(session), text_(prompt.begin(), prompt.end()), every_(every) {
    begin_ = static_cast<int64_t>(text_.size());
    write();
  }

  DrafterCheck::Trial run(TapShift shift, TapShift at) {
    const TapShift taken{shift.blocks + at.blocks, shift.positions + at.positions};
    read(taken.blocks);
    feed(taken.positions);
    DrafterCheck::Trial trial{shift, {}};
    for (int64_t pos = begin_; pos + 1 < size(); pos += every_) trial.accepted.push_back(draft(pos));
    return trial;
  }
  void clear() {
    session_.truncate(0);
    engine_.clear_slot(session_.slot());
  }

 private:
  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  bool chained() const { return engine_.drafter()->chained(); }

  /// The target's own text behind the prompt.
  void write() {
    clear();
    text_.reserve(text_.size() + kTokens);
    std::span<const int32_t> next = text_;
    while (true) {
      const auto n = static_cast<int32_t>(next.size());
      const Sequence rows = session_.rows(0, n, n > 1 ? Phase::prompt : Phase::decode);
      const int32_t last = n - 1;
      engine_.run_target({.tokens = next, .sequences = {&rows, 1}, .outputs = {&last, 1}});
      session_.keep(next);
      if (size() == begin_ + kTokens) return;
      int32_t id = 0;
      engine_.read_next(0, {&id, 1});
      text_.push_back(id);
      next = std::span(text_).last(1);
    }
  }
  /// The hidden states of the text to rows 0.. of the taps.
  void read(int64_t n_blocks) {
    clear();
    while (session_.n_past() < size()) {
      const auto n = static_cast<int32_t>(std::min(size() - session_.n_past(), kPageTokens));
      const auto tokens = std::span<const int32_t>(text_).subspan(static_cast<size_t>(session_.n_past()), n);
      std::vector<int32_t> places(tokens.size());
      std::iota(places.begin(), places.end(), static_cast<int32_t>(session_.n_past()));
      const Sequence rows = session_.rows(0, n, Phase::prompt);
      const int32_t last = n - 1;
      const Batch batch{.tokens = tokens, .sequences = {&rows, 1}, .outputs = {&last, 1}, .tap_rows = places};
      n_blocks == 0 ? engine_.run_target(batch) : engine_.run_target_tapped(batch, n_blocks);
      session_.keep(tokens);
    }
  }
  /// A chained drafter takes the state of the position before a token's own.
  int32_t source(int64_t pos, int64_t n_positions) const {
    return static_cast<int32_t>(std::clamp<int64_t>(pos + n_positions - (chained() ? 1 : 0), 0, size() - 1));
  }
  /// What the drafts see, though the session at its end would not: its pages are made anew.
  void feed(int64_t n_positions) {
    n_positions_ = n_positions;
    const int64_t seen = session_.seen_at(begin_);
    session_.make(text_, seen, 0);
    std::vector<int32_t> sources;
    for (int64_t pos = seen; pos < size(); ++pos) sources.push_back(source(pos, n_positions));
    const Sequence rows = session_.encode_rows(0, static_cast<int32_t>(size() - seen), seen);
    const auto tokens = std::span<const int32_t>(text_).subspan(chained() ? static_cast<size_t>(seen) : text_.size());
    engine_.run_encode({.tokens = tokens, .sequences = {&rows, 1}, .source_rows = sources});
  }
  /// How many tokens behind `pos` are drafted as they stand.
  int32_t draft(int64_t pos) {
    const int64_t block = chained() ? 1 : engine_.options().draft_max + 1;
    std::vector<int32_t> tokens(static_cast<size_t>(block), engine_.drafter()->config().mask_token), outputs;
    tokens[0] = text_[static_cast<size_t>(pos)];
    for (int32_t i = chained() ? 0 : 1; i < block; ++i) outputs.push_back(i);
    Sequence rows = session_.draft_rows(0, static_cast<int32_t>(block));
    rows.pos = static_cast<int32_t>(pos);
    const int32_t from = source(pos, n_positions_), own = static_cast<int32_t>(size());
    const std::span<const int32_t> sources = chained() ? std::span(&from, 1) : std::span<const int32_t>();
    const std::span<const int32_t> places = chained() ? std::span(&own, 1) : std::span<const int32_t>();
    engine_.run_draft(
        {.tokens = tokens, .sequences = {&rows, 1}, .outputs = outputs, .source_rows = sources, .tap_rows = places});
    std::vector<int32_t> ids(outputs.size());
    std::vector<float> confidence(outputs.size());
    engine_.read_draft({&rows, 1}, ids, confidence);
    const auto wanted = text_.begin() + pos + 1;
    return static_cast<int32_t>(std::mismatch(ids.begin(), ids.end(), wanted, text_.end()).first - ids.begin());
  }

  Engine& engine_;
  Session& session_;
  std::vector<int32_t> text_;
  int64_t every_, begin_ = 0, n_positions_ = 0;
};

/// By how many standard errors the second is better than the first, block by block.
double advantage(const std::vector<int32_t>& first, const std::vector<int32_t>& second) {
  const auto n = static_cast<double>(first.size());
  double sum = 0, square = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    const double difference = second[i] - first[i];
    sum += difference;
    square += difference * difference;
  }
  const double variance = square / n - (sum / n) * (sum / n);
  return sum <= 0 ? 0 : sum / std::sqrt(n * variance + 1e-9);
}

std::string where(TapShift shift) {
  const int64_t n = shift.blocks + shift.positions;
  return fmt::format("the {} {}", shift.blocks != 0 ? "block" : "position", n < 0 ? "before" : "after");
}

}  // namespace

double DrafterCheck::Trial::mean() const {
  return std::accumulate(accepted.begin(), accepted.end(), 0.0) / static_cast<double>(accepted.size());
}

std::string DrafterCheck::warning() const {
  if (trials.empty()) return "";
  const Trial& right = trials.front();
  for (size_t i = 1; i < trials.size(); ++i) {
    const Trial& other = trials[i];
    if (other.mean() < kLeastMean || advantage(right.accepted, other.accepted) < kSureness) continue;
    return fmt::format(
        "the drafter guesses better ({:.2f} tokens accepted, not {:.2f}) from the hidden states of {}: its file seems "
        "to name the wrong ones. Answers stay right, but drafting gains less than it could",
        other.mean(), right.mean(), where(other.shift));
  }
  if (right.mean() < kLeastMean) {
    return fmt::format(
        "the drafter guesses badly: {:.2f} of its tokens are accepted behind each of a built-in text; was it made for "
        "this model? Answers stay right, but drafting gains nothing",
        right.mean());
  }
  return "";
}

DrafterCheck check_drafter(Engine& engine, Session& session, std::span<const int32_t> prompt, int64_t every,
                           TapShift at) {
  if (engine.options().n_ctx < kMostPrompt + kTokens + engine.options().draft_max) return {};
  Trials trials(engine, session, prompt.first(std::min<size_t>(prompt.size(), kMostPrompt)), every);
  DrafterCheck check;
  std::vector<TapShift> shifts = {{0, 0}, {0, -1}, {0, 1}};
  if (!engine.drafter()->chained()) shifts.insert(shifts.end(), {{-1, 0}, {1, 0}});
  for (const TapShift shift : shifts) check.trials.push_back(trials.run(shift, at));
  trials.clear();
  return check;
}

}  // namespace onebit
