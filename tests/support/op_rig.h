// A plan under test with everything it needs: weights, states, batches, and what its results are compared by.
// An OpRig is built once, then run on several backends; run_rig gives all results of all batches.
//
// Inputs enter through embed from f32 tables, which is a copy: row r of a feed is the table row of the batch's token r.
// Every rig opens and closes with a guard: rows that are outputs of the plan and lie around the op's own results in
// scratch memory. They must come back unchanged.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "support/compare.h"
#include "support/test_weights.h"

namespace onebit::test {

/// One submission; the spans of Batch are made from these.
struct TestBatch {
  std::vector<int32_t> tokens;
  std::vector<Sequence> sequences;          // rows and pages are filled in by run_rig
  std::vector<std::vector<int32_t>> pages;  // by sequence; may be empty
  std::vector<int32_t> outputs;
  std::vector<int32_t> source_rows;
  std::vector<int32_t> tap_rows;
  std::function<void(StatePool&)> before;  // e.g. clearing or copying slots

  int32_t n_tok() const {
    int32_t n = 0;
    for (const Sequence& sequence : sequences) n += sequence.n_tok;
    return n;
  }
};

/// A batch of one prompt of `n_tok` rows at position 0, tokens 0, 1, ...; the last row gives outputs.
inline TestBatch prompt_batch(int32_t n_tok, Phase phase = Phase::prompt) {
  TestBatch batch;
  for (int32_t i = 0; i < n_tok; ++i) batch.tokens.push_back(i);
  batch.sequences = {{.n_tok = n_tok, .phase = phase}};
  batch.outputs = {n_tok - 1};
  return batch;
}

class OpRig {
 public:
  explicit OpRig(const std::string& name, int64_t n_tok, uint64_t seed = 1) : plan(name), rng(seed) {
    limits = {n_tok + 3, n_tok + 3};  // more than any batch has: rows past its end are free to hold anything
    guard("guard before");
  }

  Rng& random() { return rng; }
  TestWeight& new_weight() { return weights_.emplace_back(); }
  const Weight& floats(std::vector<int64_t> shape, const std::vector<float>& values) {
    TestWeight& made = new_weight();
    set_floats(made, "weight", std::move(shape), values);
    return made.weight;
  }
  const Weight& random_weight(BlockType type, std::vector<int64_t> shape, Codes codes = Codes::any) {
    TestWeight& made = new_weight();
    set_random(made, rng, "weight", type, std::move(shape), codes);
    return made.weight;
  }
  const Weight& random_floats(std::vector<int64_t> shape, float scale = 1) {
    const int64_t n = element_count(shape);
    return floats(std::move(shape), random_values(rng, n, scale));
  }
  const State& state(State made) { return states_.emplace_back(std::move(made)); }

  /// A value whose row for token t is row t of `values` [n, width].
  Value feed(int64_t width, const std::vector<float>& values) {
    return plan.embed(floats({static_cast<int64_t>(values.size()) / width, width}, values));
  }
  /// The same with random rows for every token a batch may have.
  Value feed(int64_t width, float scale = 1) { return feed(width, random_values(rng, n_token() * width, scale)); }
  int64_t n_token() const { return limits.n_tok; }

  /// Makes `value` a result that is compared by `bound`.
  void check(const std::string& name, Value value, Bound bound = {}) {
    plan.output(name, value);
    bounds.push_back(std::move(bound));
  }
  /// Ends the plan.
  void finish() { guard("guard after"); }

  const std::deque<TestWeight>& weights() const { return weights_; }
  const std::deque<State>& states() const { return states_; }

  Plan plan;
  PlanLimits limits;
  StateSizes sizes;
  std::vector<Bound> bounds;  // by output
  std::vector<TestBatch> batches;

 private:
  void guard(const std::string& name) { check(name, feed(40)); }

  Rng rng;
  std::deque<TestWeight> weights_;
  std::deque<State> states_;
};

/// One output of one batch.
struct Result {
  std::string where;  // "batch 0, y"
  int64_t width = 0;
  bool integer = false;
  std::vector<float> values;
  std::vector<int32_t> ids;
};

namespace detail {

inline Result read_result(Program& program, const Plan& plan, int output, const Batch& batch, size_t index) {
  const PlanOutput& declared = plan.outputs()[static_cast<size_t>(output)];
  const ValueInfo& info = plan.info(declared.value);
  const int64_t n_row = (info.rows == Rows::tokens ? batch.n_tok() : batch.n_out()) * info.multiple;
  Result result{fmt::format("batch {}, {}", index, declared.name), info.width, info.type == Dtype::i32, {}, {}};
  const auto size = static_cast<size_t>(n_row * info.width);
  if (result.integer) {
    result.ids.resize(size);
    program.read(output, 0, std::span<int32_t>(result.ids));
  } else {
    result.values.resize(size);
    program.read(output, 0, std::span<float>(result.values));
  }
  return result;
}

}  // namespace detail

/// Loads, compiles and runs everything of a rig on a backend.
inline std::vector<Result> run_rig(const OpRig& rig, Backend& backend) {
  for (const TestWeight& weight : rig.weights()) backend.load(weight.weight);
  std::vector<const State*> states;
  for (const State& state : rig.states()) states.push_back(&state);
  const std::unique_ptr<StatePool> pool = backend.make_states(states, rig.sizes);
  StatePool* const pools[] = {pool.get()};
  const std::unique_ptr<Program> program = backend.compile(rig.plan, pools, rig.limits);
  std::vector<Result> results;
  for (size_t b = 0; b < rig.batches.size(); ++b) {
    const TestBatch& made = rig.batches[b];
    if (made.before) made.before(*pool);
    std::vector<Sequence> sequences = made.sequences;
    int32_t row = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      sequences[s].row = row;
      row += sequences[s].n_tok;
      if (s < made.pages.size()) sequences[s].pages = made.pages[s];
    }
    const Batch batch{made.tokens, sequences, made.outputs, made.source_rows, made.tap_rows};
    program->wait(program->submit(batch));
    for (int i = 0; i < static_cast<int>(rig.plan.outputs().size()); ++i) {
      results.push_back(detail::read_result(*program, rig.plan, i, batch, b));
    }
  }
  return results;
}

/// Compares two runs of one rig; empty when they agree. `halves`: the second ran on a device with Device::halves().
inline std::string compare_results(const OpRig& rig, const std::vector<Result>& expected,
                                   const std::vector<Result>& actual, bool halves = false) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const Bound& bound = rig.bounds[i % rig.bounds.size()];
    const std::string message = expected[i].integer
                                    ? compare(expected[i].ids, actual[i].ids, expected[i].width)
                                    : compare(expected[i].values, actual[i].values, expected[i].width, bound, halves);
    if (!message.empty()) return expected[i].where + ": " + message;
  }
  return "";
}

}  // namespace onebit::test
