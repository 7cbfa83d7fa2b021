// One sequence's timeline: the tokens whose evaluation is kept, the pages and the slot that hold their state, and the
// rows of the recurrence's tape that are accepted but not yet applied. All undoing happens here, by moving ends.
//
//   rows() describes the next rows for a batch -> the batch runs -> keep() says which of them stay
//
// After a verify batch keep() may keep any number of its rows, the first ones; the rest never happened.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/pages.h"
#include "plan/batch.h"

namespace onebit {

/// How much of `prompt` (all but its last token at most) is at the front of `tokens`, which are evaluated: a recurrent
/// model can only go on from their end, an attention model can be cut back.
int64_t reusable(std::span<const int32_t> tokens, std::span<const int32_t> prompt, bool recurrent);

/// What a drafter keeps of a sequence.
struct DraftContext {
  PagePool* pages = nullptr;  // null: no drafter
  int64_t window = 0;         // positions before a block that can be seen; 0: all
};

/// A timeline as it is kept for later: what was evaluated, the pages that hold it, and how the recurrent slot that
/// belongs to it (not named here) must be read.
struct Timeline {
  std::span<const int32_t> tokens;
  std::span<const int32_t> pages, draft_pages;  // as in PageTable
  int64_t draft_begin = 0;                      // first position in the drafter's caches
  int32_t n_commit = 0;                         // accepted rows of the slot's tape
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

  /// The present state, for as long as the session isn't changed.
  Timeline timeline() const;
  /// Cuts the timeline to its first `n` tokens (n == n_past() or 0 when recurrent). At 0 the slot must be cleared too.
  void truncate(int64_t n);
  /// Becomes the first `n` tokens of another timeline (all of them when recurrent), whose slot was copied to this one.
  void go_on_from(const Timeline& from, int64_t n);
  /// Becomes these tokens, on pages (and a slot) whose content the caller writes; the drafter's from `draft_begin` on.
  Timeline make(std::span<const int32_t> tokens, int64_t draft_begin, int32_t n_commit);

  // --- the drafter's side ---
  /// The drafter sees nothing before the page of `pos`: rows there are not fed, those that were are given up.
  void draft_from(int64_t pos);
  /// First position that a block at position `end` sees.
  int64_t seen_at(int64_t end) const { return draft_.window > 0 ? std::max<int64_t>(end - draft_.window, 0) : 0; }
  /// First position that the drafter's caches still need.
  int64_t draft_begin() const { return draft_begin_; }
  /// The entry of rows that feed positions pos..pos+n_tok-1 to the drafter's caches.
  Sequence encode_rows(int32_t row, int32_t n_tok, int64_t pos);
  /// The entry of a drafted block's rows at positions from n_past() on.
  Sequence draft_rows(int32_t row, int32_t n_tok);

 private:
  void cut_draft(int64_t n);

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
