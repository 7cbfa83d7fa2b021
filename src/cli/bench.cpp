#include "cli/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "cli/answer.h"

namespace onebit {
namespace {

constexpr int64_t kVerifyPasses = 16;
constexpr int64_t kShortPrompt = 256;  // prompts below are repeated until so many tokens are read, to be long enough

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Tokens that look like nothing, the same ones every time.
std::vector<int32_t> random_tokens(const Engine& engine, int64_t n) {
  Rng rng(1);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  const auto n_vocab = static_cast<uint64_t>(engine.config().n_vocab);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next() % n_vocab);
  return tokens;
}

std::vector<int32_t> first_pages(int64_t n) {
  std::vector<int32_t> pages(static_cast<size_t>(n));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  return pages;
}

/// One sequence in slot 0, whose pages are the first of the pool. Positions below `depth` hold what the last run that
/// wrote them left there (their values don't change what a pass costs); those that no run wrote are read as a prompt.
class BenchLine {
 public:
  BenchLine(BenchTarget& target, int64_t depth)
      : target_(target), pages_(first_pages(target.engine.target_sizes().n_pages / target.engine.options().n_slots)) {
    target_.engine.clear_slot(0);
    n_past_ = std::min(target_.n_written, depth);
    read(random_tokens(target_.engine, depth - n_past_), false);
  }

  /// Runs `tokens` as the next rows; with `all_outputs` each of them gets logits, otherwise the last.
  void run(std::span<const int32_t> tokens, Phase phase, bool all_outputs, bool taps = false) {
    const auto n = static_cast<int32_t>(tokens.size());
    outputs_.clear();
    for (int32_t row = all_outputs ? 0 : n - 1; row < n; ++row) outputs_.push_back(row);
    tap_rows_.resize(taps ? tokens.size() : 0);
    std::iota(tap_rows_.begin(), tap_rows_.end(), 0);
    const Sequence sequence{.row = 0,
                            .n_tok = n,
                            .pos = static_cast<int32_t>(n_past_),
                            .phase = phase,
                            .slot = 0,
                            .n_commit = n_commit_,
                            .pages = pages_};
    target_.engine.run_target({.tokens = tokens,
                               .sequences = {&sequence, 1},
                               .outputs = outputs_,
                               .source_rows = {},
                               .tap_rows = tap_rows_,
                               .choices_only = true});
    n_commit_ = 0;
    target_.n_written = std::max(target_.n_written, n_past_ + n);
    if (phase != Phase::verify) n_past_ += n;
  }
  /// Keeps the first `n` rows of a verify run.
  void keep(int32_t n) {
    n_commit_ = n;
    n_past_ += n;
  }
  /// Reads a prompt in passes of the batch size.
  void read(std::span<const int32_t> tokens, bool taps) {
    while (!tokens.empty()) {
      const size_t n = std::min(tokens.size(), static_cast<size_t>(target_.engine.options().n_batch));
      run(tokens.first(n), Phase::prompt, false, taps);
      tokens = tokens.subspan(n);
    }
  }
  int64_t n_past() const { return n_past_; }

 private:
  BenchTarget& target_;
  int64_t n_past_ = 0;
  int32_t n_commit_ = 0;
  std::vector<int32_t> pages_, outputs_, tap_rows_;
};

/// Adds passes to a run's work.
void count(const BenchTarget& target, PassShape shape, double n_passes, BenchRun& run) {
  shape.cache = target.engine.options().cache;
  const PassCost cost = pass_cost(target.plan, shape);
  run.bytes += cost.bytes * n_passes;
  run.operations += cost.operations * n_passes;
}

std::string at_depth(std::string name, int64_t depth) { return depth > 0 ? fmt::format("{}@{}", name, depth) : name; }

/// Experts that `n_tok` rows of `n_used` random choices each are likely to touch.
double experts_touched(const Weight& w, double n_used, double n_tok) {
  const auto n = static_cast<double>(w.n_expert());
  return n * (1 - std::pow(1 - n_used / n, n_tok));
}

}  // namespace

PassCost pass_cost(const Plan& plan, const PassShape& shape) {
  PassCost cost;
  double n_used = 1;
  for (const Step& step : plan.steps()) {
    if (step.op == Op::route) n_used = std::get<RouteParams>(step.params).n_used;
    if (step.op == Op::attention) {
      const auto& params = std::get<AttentionParams>(step.params);
      const int64_t n_pos = params.window > 0 ? std::min(params.window, shape.n_past) : shape.n_past;
      cost.bytes += static_cast<double>(2 * cache_bytes(shape.cache, n_pos * params.n_head_kv * params.d_head));
    }
    if (step.op != Op::matmul && step.op != Op::matmul_experts) continue;
    const Weight& w = *step.weights.front();
    const auto n_row =
        static_cast<double>(plan.info(step.out.front()).rows == Rows::outputs ? shape.n_out : shape.n_tok);
    const bool experts = step.op == Op::matmul_experts;
    const double macs = static_cast<double>(w.n_in()) * static_cast<double>(w.n_out()) * (experts ? n_used : 1);
    const double share = experts ? experts_touched(w, n_used, n_row) / static_cast<double>(w.n_expert()) : 1;
    cost.bytes += static_cast<double>(w.data.size()) * share;
    cost.operations += 2 * macs * n_row;
  }
  return cost;
}

BenchTest prompt_test(BenchTarget& target, int64_t n, int64_t depth) {
  return {at_depth(fmt::format("pp{}", n), depth), [&target, n, depth] {
            const std::vector<int32_t> tokens = random_tokens(target.engine, n);
            const int64_t times = std::max<int64_t>(1, kShortPrompt / n), n_batch = target.engine.options().n_batch;
            BenchRun run;
            for (int64_t i = 0; i < times; ++i) {
              BenchLine timeline(target, depth);
              run.seconds += seconds_of([&] { timeline.read(tokens, false); });
            }
            run.n_tok = static_cast<double>(n * times);
            for (int64_t done = 0; done < n; done += n_batch) {
              count(target, {std::min(n_batch, n - done), 1, depth + done}, static_cast<double>(times), run);
            }
            return run;
          }};
}

BenchTest decode_test(BenchTarget& target, int64_t n, int64_t depth) {
  return {at_depth(fmt::format("tg{}", n), depth), [&target, n, depth] {
            std::vector<int32_t> token = random_tokens(target.engine, 1);
            BenchLine timeline(target, depth);
            BenchRun run;
            run.seconds = seconds_of([&] {
              for (int64_t i = 0; i < n; ++i) {
                timeline.run(token, Phase::decode, true);
                target.engine.read_next(0, token);
              }
            });
            run.n_tok = static_cast<double>(n);
            count(target, {1, 1, depth + n / 2}, run.n_tok, run);
            return run;
          }};
}

BenchTest verify_test(BenchTarget& target, int64_t n, int64_t depth) {
  return {at_depth(fmt::format("verify{}", n), depth), [&target, n, depth] {
            const std::vector<int32_t> rows = random_tokens(target.engine, n);
            BenchLine timeline(target, depth);
            std::vector<int32_t> next(rows.size());
            BenchRun run;
            run.seconds = seconds_of([&] {
              for (int64_t pass = 0; pass < kVerifyPasses; ++pass) {
                timeline.run(rows, Phase::verify, true);
                target.engine.read_next(0, next);
                timeline.keep(static_cast<int32_t>((n + 1) / 2));
              }
            });
            run.n_tok = static_cast<double>(n * kVerifyPasses);
            count(target, {n, n, depth + n * kVerifyPasses / 4}, static_cast<double>(kVerifyPasses), run);
            return run;
          }};
}

// --- drafting with acceptance by chance -----------------------------------------------------------------------------

namespace {

/// Chance that a draft is kept once those before it are, so that a round keeps `mean` tokens: 1 + p + p^2 ...
/// p^n_draft.
double chance_for(double mean, int64_t n_draft) {
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double p = (low + high) / 2;
    double sum = 1, power = 1;
    for (int64_t j = 0; j < n_draft; ++j) sum += power *= p;
    (sum < mean ? low : high) = p;
  }
  return low;
}

/// The drafter's side of a timeline.
class DraftLine {
 public:
  explicit DraftLine(Engine& engine)
      : engine_(engine),
        n_draft_(engine.options().draft_max),
        pages_(first_pages(engine.draft_sizes().n_pages / engine.options().n_slots)) {
    for (int32_t i = 1; i <= n_draft_; ++i) outputs_.push_back(i);
    ids_.resize(outputs_.size());
    confidence_.resize(outputs_.size());
  }

  int64_t n_draft() const { return n_draft_; }
  /// The anchor and what the drafter proposes after it, at position `pos`.
  std::vector<int32_t> propose(int32_t anchor, int64_t pos) {
    std::vector<int32_t> tokens(outputs_.size() + 1, engine_.drafter()->config().mask_token);
    tokens[0] = anchor;
    const Sequence sequence = rows(static_cast<int32_t>(tokens.size()), pos);
    engine_.run_draft({.tokens = tokens, .sequences = {&sequence, 1}, .outputs = outputs_});
    engine_.read_draft({&sequence, 1}, ids_, confidence_);
    std::copy(ids_.begin(), ids_.end(), tokens.begin() + 1);
    return tokens;
  }
  /// Feeds the first `n` rows of the target's last run, at position `pos`.
  void encode(int32_t n, int64_t pos) {
    std::vector<int32_t> sources(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) sources[static_cast<size_t>(i)] = i;
    const Sequence sequence = rows(n, pos);
    engine_.run_encode({.sequences = {&sequence, 1}, .source_rows = sources});
  }

 private:
  Sequence rows(int32_t n, int64_t pos) const {
    return {.row = 0, .n_tok = n, .pos = static_cast<int32_t>(pos), .phase = Phase::draft, .slot = 0, .pages = pages_};
  }

  Engine& engine_;
  int32_t n_draft_;
  std::vector<int32_t> pages_, outputs_, ids_;
  std::vector<float> confidence_;
};

}  // namespace

BenchTest synthetic_draft_test(BenchTarget& target, int64_t n, double mean) {
  return {fmt::format("draft{}", n), [&target, n, mean] {
            Engine& engine = target.engine;
            BenchLine timeline(target, 0);
            DraftLine drafter(engine);
            const double chance = chance_for(mean, drafter.n_draft());
            Rng rng(2);
            std::vector<int32_t> next = random_tokens(engine, drafter.n_draft() + 1);
            timeline.read(next, true);
            drafter.encode(static_cast<int32_t>(next.size()), 0);
            BenchRun run;
            int32_t kept = 1;
            int64_t n_kept = 0;
            run.seconds = seconds_of([&] {
              while (n_kept < n) {
                const int64_t pos = timeline.n_past();
                const std::vector<int32_t> rows = drafter.propose(next[static_cast<size_t>(kept) - 1], pos);
                timeline.run(rows, Phase::verify, true, true);
                engine.read_next(0, next);
                for (kept = 1; kept <= drafter.n_draft() && rng.uniform() < chance;) ++kept;
                timeline.keep(kept);
                drafter.encode(kept, pos);
                n_kept += kept;
                ++run.statistics.rounds;
              }
            });
            run.n_tok = static_cast<double>(n_kept);
            run.statistics.draft_n = run.statistics.rounds * drafter.n_draft();
            run.statistics.draft_n_accepted = n_kept - run.statistics.rounds;
            return run;
          }};
}

// --- text -----------------------------------------------------------------------------------------------------------

BenchTest text_test(Scheduler& scheduler, const TextModel& model, const BenchPrompt& prompt, int64_t n_predict,
                    bool draft, const StopSignals& signals) {
  return {fmt::format("{}-{}", draft ? "spec" : "plain", prompt.name), [&, n_predict, draft] {
            Request request;
            request.prompt = text_prompt(model, prompt.text);
            request.max_tokens = n_predict;
            if (!draft) request.draft_max = 0;
            request.reuse_prefix = false;
            set_end_tokens(model.tokenizer, false, request);
            const Answer answer = generate(scheduler, model, std::move(request), {}, {}, signals);
            BenchRun run;
            run.statistics = answer.statistics;
            run.seconds = answer.statistics.predicted_ms / 1e3;
            run.n_tok = static_cast<double>(answer.statistics.predicted_n);
            return run;
          }};
}

}  // namespace onebit
