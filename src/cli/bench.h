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
  double bytes = 0;       // weights and cache read from memory, 0: not known
  double operations = 0;  // multiplies and adds in matrices, 0: not known
  Peaks peaks;            // of the machine, the mean of before and after
  Statistics statistics;  // of tests that generate text
};

struct BenchTest {
  std::string name;
  std::function<BenchRun()> run;
};

/// Work of one pass over a plan, counted from its steps: every weight once (of experts, as many as the rows are likely
/// to choose), the cache's positions once, and the operations of all matrix products.
struct PassCost {
  double bytes = 0, operations = 0;
};
struct PassShape {
  int64_t n_tok = 1, n_out = 1, n_past = 0;
  CacheType cache = CacheType::f16;
};
PassCost pass_cost(const Plan& plan, const PassShape& shape);

/// An engine under test and what is known of it.
struct BenchTarget {
  Engine& engine;
  Plan plan;              // of the target
  int64_t n_written = 0;  // positions of slot 0's cache that some run has written
};

/// pp, tg and verify straight on the engine, in slot 0, after `depth` tokens. `n` tokens each, with logits for the last
/// row of a prompt; verify runs passes of `n` rows with logits for all, about half of which are kept each time.
BenchTest prompt_test(BenchTarget& target, int64_t n, int64_t depth);
BenchTest decode_test(BenchTarget& target, int64_t n, int64_t depth);
BenchTest verify_test(BenchTarget& target, int64_t n, int64_t depth);

/// Rounds of drafting, verifying and encoding until `n` tokens are kept, `mean` a round on average by chance, whatever
/// the drafter proposes: what drafting costs, apart from how good the drafter is. The engine must have a drafter.
BenchTest synthetic_draft_test(BenchTarget& target, int64_t n, double mean);

/// Greedy continuation of a prompt by the scheduler, with the drafter ("spec-NAME") or without ("plain-NAME").
BenchTest text_test(Scheduler& scheduler, const TextModel& model, const BenchPrompt& prompt, int64_t n_predict,
                    bool draft, const StopSignals& signals);

}  // namespace onebit
