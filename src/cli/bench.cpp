#include "cli/bench.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/rng.h"
#include "cli/answer.h"

namespace onebit {
namespace {

constexpr int kVerifyPasses = 16;
constexpr int64_t kVerifyContext = 64;  // tokens before the rows under test

/// One sequence in slot 0, whose pages are the first of the pool.
class Timeline {
 public:
  explicit Timeline(Engine& engine) : engine_(engine), n_past_(0) {
    engine.clear_slot(0);
    pages_.resize(static_cast<size_t>(engine.target_sizes().n_pages / engine.options().n_slots));
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(i);
  }

  /// Runs `tokens` as the next rows; with `all_outputs` each of them gets logits, otherwise the last.
  void run(std::span<const int32_t> tokens, Phase phase, bool all_outputs) {
    const auto n = static_cast<int32_t>(tokens.size());
    outputs_.clear();
    for (int32_t row = all_outputs ? 0 : n - 1; row < n; ++row) outputs_.push_back(row);
    const Sequence sequence{.row = 0,
                            .n_tok = n,
                            .pos = static_cast<int32_t>(n_past_),
                            .phase = phase,
                            .slot = 0,
                            .n_commit = 0,
                            .pages = pages_};
    engine_.run_target({.tokens = tokens, .sequences = {&sequence, 1}, .outputs = outputs_, .source_rows = {}});
    if (phase != Phase::verify) n_past_ += n;
  }

 private:
  Engine& engine_;
  int64_t n_past_;
  std::vector<int32_t> pages_, outputs_;
};

/// Tokens that look like nothing, the same ones every time.
std::vector<int32_t> random_tokens(const Engine& engine, int64_t n) {
  Rng rng(1);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  const auto n_vocab = static_cast<uint64_t>(engine.config().n_vocab);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next() % n_vocab);
  return tokens;
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run_prompt(Timeline& timeline, const Engine& engine, std::span<const int32_t> tokens) {
  while (!tokens.empty()) {
    const size_t n = std::min(tokens.size(), static_cast<size_t>(engine.options().n_batch));
    timeline.run(tokens.first(n), Phase::prompt, false);
    tokens = tokens.subspan(n);
  }
}

}  // namespace

PlanCost plan_cost(const Plan& plan) {
  PlanCost cost;
  int64_t n_used = 1;
  for (const Step& step : plan.steps()) {
    if (step.op == Op::route) n_used = std::get<RouteParams>(step.params).n_used;
    if (step.op != Op::matmul && step.op != Op::matmul_experts) continue;
    const Weight& w = *step.weights.front();
    const double share = step.op == Op::matmul ? 1 : static_cast<double>(n_used) / static_cast<double>(w.n_expert());
    const double macs =
        static_cast<double>(w.n_in()) * static_cast<double>(w.n_out()) * static_cast<double>(w.n_expert()) * share;
    const bool head = plan.info(step.out.front()).rows == Rows::outputs;
    cost.pass_bytes += static_cast<double>(w.data.size()) * share;
    (head ? cost.out_operations : cost.row_operations) += 2 * macs;
  }
  return cost;
}

BenchTest prompt_test(Engine& engine, const PlanCost& cost, int64_t n) {
  return {fmt::format("pp{}", n), [&engine, cost, n] {
            const std::vector<int32_t> tokens = random_tokens(engine, n);
            Timeline timeline(engine);
            BenchRun run;
            run.seconds = seconds_of([&] { run_prompt(timeline, engine, tokens); });
            run.n_tok = static_cast<double>(n);
            const int64_t n_passes = (n + engine.options().n_batch - 1) / engine.options().n_batch;
            run.bytes = cost.pass_bytes * static_cast<double>(n_passes);
            run.operations = cost.row_operations * run.n_tok + cost.out_operations * static_cast<double>(n_passes);
            return run;
          }};
}

BenchTest decode_test(Engine& engine, const PlanCost& cost, int64_t n) {
  return {fmt::format("tg{}", n), [&engine, cost, n] {
            std::vector<int32_t> token = random_tokens(engine, 1);
            Timeline timeline(engine);
            BenchRun run;
            run.seconds = seconds_of([&] {
              for (int64_t i = 0; i < n; ++i) {
                timeline.run(token, Phase::decode, true);
                engine.read_next(0, token);
              }
            });
            run.n_tok = static_cast<double>(n);
            run.bytes = cost.pass_bytes * run.n_tok;
            run.operations = (cost.row_operations + cost.out_operations) * run.n_tok;
            return run;
          }};
}

BenchTest verify_test(Engine& engine, const PlanCost& cost, int64_t n) {
  return {fmt::format("verify{}", n), [&engine, cost, n] {
            const std::vector<int32_t> tokens = random_tokens(engine, std::max(n, kVerifyContext));
            Timeline timeline(engine);
            run_prompt(timeline, engine, std::span(tokens).first(kVerifyContext));
            const std::span<const int32_t> rows = std::span(tokens).first(static_cast<size_t>(n));
            std::vector<int32_t> next(rows.size());
            BenchRun run;
            run.seconds = seconds_of([&] {
              for (int pass = 0; pass < kVerifyPasses; ++pass) {
                timeline.run(rows, Phase::verify, true);
                engine.read_next(0, next);
              }
            });
            run.n_tok = static_cast<double>(n) * kVerifyPasses;
            run.bytes = cost.pass_bytes * kVerifyPasses;
            run.operations = (cost.row_operations + cost.out_operations) * run.n_tok;
            return run;
          }};
}

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
