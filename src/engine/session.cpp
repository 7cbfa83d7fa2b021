#include "engine/session.h"

#include <algorithm>

#include "base/error.h"
#include "plan/state.h"

namespace onebit {
namespace {

int64_t page_start(int64_t pos) { return std::max<int64_t>(pos, 0) / kPageTokens * kPageTokens; }

}  // namespace

Session::Session(int32_t slot, int64_t n_ctx, PagePool& pages, const DraftContext& draft)
    : slot_(slot), draft_(draft), pages_(pages, n_ctx) {
  tokens_.reserve(static_cast<size_t>(n_ctx));
  if (draft.pages) draft_pages_.emplace(*draft.pages, n_ctx);
}

Sequence Session::rows(int32_t row, int32_t n_tok, Phase phase) {
  pages_.reserve(n_past(), n_past() + n_tok);
  last_phase_ = phase;
  return {.row = row,
          .n_tok = n_tok,
          .pos = static_cast<int32_t>(n_past()),
          .phase = phase,
          .slot = slot_,
          .n_commit = n_commit_,
          .pages = pages_.pages()};
}

void Session::keep(std::span<const int32_t> tokens) {
  n_commit_ = last_phase_ == Phase::verify ? static_cast<int32_t>(tokens.size()) : 0;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  pages_.truncate(n_past());
  if (draft_pages_ && draft_.window > 0) {
    draft_begin_ = std::max(draft_begin_, page_start(n_past() - draft_.window));
    draft_pages_->drop_below(draft_begin_);
  }
}

int64_t Session::reusable(std::span<const int32_t> prompt, bool recurrent) const {
  const size_t most = std::min(tokens_.size(), prompt.size() - 1);
  const auto differ = std::mismatch(tokens_.begin(), tokens_.begin() + static_cast<int64_t>(most), prompt.begin());
  const int64_t common = differ.first - tokens_.begin();
  if (common == n_past()) return common;
  if (recurrent) return 0;
  const bool draft_fits = !draft_pages_ || draft_begin_ == 0 || draft_begin_ <= page_start(common - draft_.window);
  return draft_fits ? common : 0;
}

void Session::truncate(int64_t n) {
  CHECK(n >= 0 && n <= n_past());
  tokens_.resize(static_cast<size_t>(n));
  pages_.truncate(n);
  if (draft_pages_) draft_pages_->truncate(n);
  if (n > 0) return;
  n_commit_ = 0;
  draft_begin_ = 0;
}

void Session::start_prompt(int64_t n_prompt) {
  if (!draft_pages_ || draft_.window == 0) return;
  draft_begin_ = std::max(draft_begin_, page_start(n_prompt - draft_.window));
  draft_pages_->drop_below(draft_begin_);
}

Sequence Session::encode_rows(int32_t row, int32_t n_tok, int64_t pos) {
  draft_pages_->reserve(pos, pos + n_tok);
  return {.row = row,
          .n_tok = n_tok,
          .pos = static_cast<int32_t>(pos),
          .phase = Phase::draft,
          .slot = slot_,
          .pages = draft_pages_->pages()};
}

Sequence Session::draft_rows(int32_t row, int32_t n_tok) {
  return {.row = row,
          .n_tok = n_tok,
          .pos = static_cast<int32_t>(n_past()),
          .phase = Phase::draft,
          .slot = slot_,
          .pages = draft_pages_->pages()};
}

}  // namespace onebit
