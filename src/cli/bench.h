// What `1bit bench` measures: tests that run one pass each and tell its time, so that they can take turns.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/signals.h"
#include "engine/scheduler.h"
#include "engine/text_model.h"

namespace onebit {

struct BenchPrompt {
  std::string name, text;
};
/// The prompts of the tests with a drafter (models/bench/).
const std::vector<BenchPrompt>& bench_prompts();

/// What one run of a test took and did.
struct BenchRun {
  double seconds = 0;
  double n_tok = 0;       // tokens read, written or verified
  double bytes = 0;       // weights read from memory, 0: not known
  double operations = 0;  // multiplies and adds in matrices, 0: not known
  Statistics statistics;  // of tests that generate text
};

struct BenchTest {
  std::string name;
  std::function<BenchRun()> run;
};

/// Work of the target per pass and per token, counted from its plan.
struct PlanCost {
  double pass_bytes = 0;      // weights of one pass with a single row
  double row_operations = 0;  // per row
  double out_operations = 0;  // more, per row with logits
};
PlanCost plan_cost(const Plan& plan);

/// pp, tg and verify straight on the engine, in slot 0. `n` tokens each; verify runs passes of `n` rows.
BenchTest prompt_test(Engine& engine, const PlanCost& cost, int64_t n);
BenchTest decode_test(Engine& engine, const PlanCost& cost, int64_t n);
BenchTest verify_test(Engine& engine, const PlanCost& cost, int64_t n);

/// Greedy continuation of a prompt by the scheduler, with the drafter ("spec-NAME") or without ("plain-NAME").
BenchTest text_test(Scheduler& scheduler, const TextModel& model, const BenchPrompt& prompt, int64_t n_predict,
                    bool draft, const StopSignals& signals);

}  // namespace onebit
