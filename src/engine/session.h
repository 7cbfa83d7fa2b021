// One sequence's timeline: the tokens whose evaluation is kept, the pages and the slot that hold their state, and the
// rows of the recurrence's tape that are accepted but not yet applied. All undoing happens here, by moving ends.
//
//   rows() describes the next rows for a batch -> the batch runs -> keep() says which of them stay
//
// After a verify batch keep() may keep any number of its rows, the first ones; the rest never happened.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/pages.h"
#include "plan/batch.h"

namespace onebit {

/// What a drafter keeps of a sequence.
struct DraftContext {
  PagePool* pages = nullptr;  // null: no drafter
  int64_t window = 0;         // positions before a block that can be seen; 0: all
};

class Session {
 public:
  Session(int32_t slot, int64_t n_ctx, PagePool& pages, const DraftContext& draft);

  int32_t slot() const { return slot_; }
  int64_t n_past() const { return static_cast<int64_t>(tokens_.size()); }  // the next row's position
  const std::vector<int32_t>& tokens() const { return tokens_; }

  /// The sequence entry of `n_tok` rows from position n_past() on, starting at batch row `row`.
  Sequence rows(int32_t row, int32_t n_tok, Phase phase);
  /// Keeps the first tokens.size() rows of the last batch, which evaluated these tokens.
  void keep(std::span<const int32_t> tokens);

  /// How much of `prompt` (all but its last token at most) is evaluated already and may be reused. A recurrent model
  /// can only go on from its end; an attention model, and a drafter's window, can be cut back.
  int64_t reusable(std::span<const int32_t> prompt, bool recurrent) const;
  /// Cuts the timeline to its first `n` tokens (n == n_past() or 0 when recurrent). At 0 the slot must be cleared too.
  void truncate(int64_t n);

  // --- the drafter's side ---
  /// A prompt that ends at position `n_prompt` is about to be read: positions out of the first block's window are not
  /// kept.
  void start_prompt(int64_t n_prompt);
  /// First position that the drafter's caches still need.
  int64_t draft_begin() const { return draft_begin_; }
  /// The entry of rows that feed positions pos..pos+n_tok-1 to the drafter's caches.
  Sequence encode_rows(int32_t row, int32_t n_tok, int64_t pos);
  /// The entry of a drafted block's rows at positions from n_past() on.
  Sequence draft_rows(int32_t row, int32_t n_tok);

 private:
  int32_t slot_;
  DraftContext draft_;
  std::vector<int32_t> tokens_;
  PageTable pages_;
  std::optional<PageTable> draft_pages_;
  int64_t draft_begin_ = 0;
  int32_t n_commit_ = 0;
  Phase last_phase_ = Phase::prompt;
};

}  // namespace onebit
