// What a compiled plan asks of every batch: the one list of checks that all backends make before they run it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/batch.h"
#include "plan/plan.h"
#include "plan/state.h"

namespace onebit {

class BatchCheck {
 public:
  /// For a plan compiled for `limits`; bounds of states come with add_state().
  BatchCheck(const Plan& plan, const PlanLimits& limits);
  /// `step` has a state in a pool of these sizes.
  void add_state(const Step& step, const StateSizes& sizes);
  /// CHECKs that sequences cover the rows in order, that outputs ascend, that tokens, pages, slots, tape rows and
  /// stored rows exist, and that no two sequences share a slot, since they would have no order.
  void check(const Batch& batch);

 private:
  void check_sequences(const Batch& batch);

  PlanLimits limits_;
  bool needs_tokens_ = false, caches_rows_ = false;  // caches_rows_: rows' own positions need a page
  // Upper bounds; 0 where the plan has no such operand.
  int64_t n_token_id_ = 0, n_page_ = 0, n_slot_ = 0, n_tape_ = 0, n_stored_row_ = 0, n_loaded_row_ = 0;
  std::vector<uint64_t> used_;  // by slot: the last batch that used it
  uint64_t n_batch_ = 0;
};

}  // namespace onebit
