#include "plan/batch_check.h"

#include <algorithm>
#include <variant>

#include "base/error.h"

namespace onebit {

BatchCheck::BatchCheck(const Plan& plan, const PlanLimits& limits) : limits_(limits) {
  for (const Step& step : plan.steps()) {
    caches_rows_ |= step.op == Op::kv_store || step.op == Op::attention;
    if (step.op != Op::embed && step.op != Op::select_walk) continue;
    needs_tokens_ = true;
    const int64_t n_token_id = step.weights[0]->n_out();
    n_token_id_ = n_token_id_ > 0 ? std::min(n_token_id_, n_token_id) : n_token_id;
  }
}

void BatchCheck::add_state(const Step& step, const StateSizes& sizes) {
  if (std::holds_alternative<KvState>(step.state->kind)) n_page_ = sizes.n_pages;
  if (std::holds_alternative<RowsState>(step.state->kind)) {
    (step.op == Op::load_rows ? n_loaded_row_ : n_stored_row_) = sizes.n_rows;
  }
  if (!std::holds_alternative<DeltaNetState>(step.state->kind)) return;
  n_slot_ = sizes.n_slots;
  n_tape_ = sizes.n_tape;
  used_.resize(static_cast<size_t>(n_slot_), 0);
}

void BatchCheck::check(const Batch& batch) {
  ++n_batch_;
  const int64_t n_tok = batch.n_tok();
  CHECK(n_tok > 0 && n_tok <= limits_.n_tok && batch.n_out() <= limits_.n_out);
  check_sequences(batch);
  int32_t before = -1;
  for (const int32_t output : batch.outputs) {
    CHECK(output > before && output < n_tok);
    before = output;
  }
  if (needs_tokens_) {
    CHECK(static_cast<int64_t>(batch.tokens.size()) == n_tok);
    for (const int32_t token : batch.tokens) CHECK(token >= 0 && token < n_token_id_);
  }
  if (n_stored_row_ > 0 && !batch.tap_rows.empty()) {
    CHECK(static_cast<int64_t>(batch.tap_rows.size()) == n_tok);
    for (const int32_t to : batch.tap_rows) CHECK(to < n_stored_row_);
  }
  if (n_loaded_row_ > 0) {
    CHECK(static_cast<int64_t>(batch.source_rows.size()) == n_tok);
    for (const int32_t source : batch.source_rows) CHECK(source >= 0 && source < n_loaded_row_);
  }
}

void BatchCheck::check_sequences(const Batch& batch) {
  int32_t row = 0;
  for (const Sequence& sequence : batch.sequences) {
    CHECK(sequence.row == row && sequence.n_tok > 0 && sequence.pos >= 0 && sequence.n_commit >= 0);
    row += sequence.n_tok;
    if (n_page_ > 0) {
      for (const int32_t page : sequence.pages) CHECK(page >= -1 && page < n_page_);
      const int64_t n_cached = sequence.pos + (caches_rows_ ? sequence.n_tok : 0);
      CHECK(n_cached <= static_cast<int64_t>(sequence.pages.size()) * kPageTokens);
    }
    if (n_slot_ == 0) continue;
    CHECK(sequence.slot >= 0 && sequence.slot < n_slot_ && sequence.n_commit <= n_tape_);
    CHECK(sequence.phase != Phase::verify || sequence.n_tok <= n_tape_);
    uint64_t& used = used_[static_cast<size_t>(sequence.slot)];
    CHECK(used != n_batch_);
    used = n_batch_;
  }
}

}  // namespace onebit
