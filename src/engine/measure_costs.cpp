#include "engine/measure_costs.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace onebit {
namespace {

constexpr int64_t kDepth = 128;
constexpr double kMeasureMs = 200;  // slow devices take a few passes' time

/// Passes at some depth, with tokens and states that don't matter.
class Passes {
 public:
  Passes(Engine& engine, Session& session, const DraftFeed& feed) : engine_(engine), session_(session), feed_(feed) {}

  bool chained() const { return engine_.drafter()->chained(); }
  int64_t block() const { return engine_.options().draft_max + 1; }

  void target(int64_t n) {
    tokens_.assign(static_cast<size_t>(n), 0);
    outputs_.resize(static_cast<size_t>(n));
    std::iota(outputs_.begin(), outputs_.end(), 0);
    taps_.clear();
    for (int64_t i = 0; i < n && engine_.drafter(); ++i) taps_.push_back(feed_.tap_row(session_, i));
    Sequence rows = session_.rows(0, static_cast<int32_t>(n), n > 1 ? Phase::verify : Phase::decode);
    if (n > 1) rows.n_commit = std::min(n_taped_, static_cast<int32_t>(n + 1) / 2);  // what the last draft left
    engine_.run_target(
        {.tokens = tokens_, .sequences = {&rows, 1}, .outputs = outputs_, .tap_rows = taps_, .choices_only = true});
    session_.keep({});
    n_taped_ = n > 1 ? static_cast<int32_t>(n) : 0;
  }
  void encode(int64_t n) {
    tokens_.assign(chained() ? static_cast<size_t>(n) : 0, 0);
    taps_.assign(static_cast<size_t>(n), feed_.tap_row(session_, 0));
    const Sequence rows = session_.encode_rows(0, static_cast<int32_t>(n), session_.n_past());
    engine_.run_encode({.tokens = tokens_, .sequences = {&rows, 1}, .source_rows = taps_});
  }
  void draft(int64_t n) { chained() ? draft_token() : draft_block(n); }

 private:
  void draft_token() {
    tokens_.assign(1, 0);
    const Sequence rows = session_.encode_rows(0, 1, session_.n_past());
    const int32_t from = feed_.tap_row(session_, 0), to = feed_.chain_row(session_), output = 0;
    engine_.run_draft({.tokens = tokens_,
                       .sequences = {&rows, 1},
                       .outputs = {&output, 1},
                       .source_rows = {&from, 1},
                       .tap_rows = {&to, 1}});
  }
  void draft_block(int64_t n) {
    tokens_.assign(static_cast<size_t>(n), engine_.drafter()->config().mask_token);
    outputs_.resize(static_cast<size_t>(n) - 1);
    std::iota(outputs_.begin(), outputs_.end(), 1);
    const Sequence rows = session_.draft_rows(0, static_cast<int32_t>(n));
    engine_.run_draft({.tokens = tokens_, .sequences = {&rows, 1}, .outputs = outputs_});
  }

  Engine& engine_;
  Session& session_;
  const DraftFeed& feed_;
  int32_t n_taped_ = 0;  // rows that the last pass left to be committed
  std::vector<int32_t> tokens_, outputs_, taps_;
};

}  // namespace

StepCosts measure_costs(Engine& engine, Session& session, const DraftFeed& feed) {
  StepCosts costs;
  Passes passes(engine, session, feed);
  const int64_t block = passes.block();
  if (block <= 1) return costs;
  const std::vector<int32_t> before(static_cast<size_t>(std::min(kDepth, engine.options().n_ctx / 2)));
  session.make(before, 0, 0);
  passes.target(1);  // the first one finds memory that was never touched
  if (engine.drafter()) passes.draft(2);
  const auto target = [&](int64_t n) { passes.target(n); };
  const auto plain = [&] { passes.target(1); };
  costs.target = measure_curve(1, block, kMeasureMs / 2, target, [&] {
    if (engine.drafter()) passes.draft(2);
  });
  if (engine.drafter()) {
    const int64_t least = passes.chained() ? 1 : 2;
    const int64_t most = passes.chained() ? 2 : block;  // passes of a chained drafter are taken to cost the same
    costs.draft = measure_curve(
        least, most, kMeasureMs / 2, [&](int64_t n) { passes.draft(n); }, plain);
    costs.encode = measure_curve(
        1, engine.tap_ring(), kMeasureMs / 8, [&](int64_t n) { passes.encode(n); }, plain);
  }
  session.truncate(0);
  engine.clear_slot(session.slot());
  return costs;
}

}  // namespace onebit
