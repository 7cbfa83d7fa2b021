#include "engine/session.h"

#include <algorithm>

#include "base/error.h"
#include "plan/state.h"

namespace onebit {
namespace {

int64_t page_start(int64_t pos) { return std::max<int64_t>(pos, 0) / kPageTokens * kPageTokens; }

}  // namespace

int64_t reusable(std::span<const int32_t> tokens, std::span<const int32_t> prompt, bool recurrent) {
  const size_t most = std::min(tokens.size(), prompt.size() - 1);
  if (recurrent && most < tokens.size()) return 0;
  const auto differ = std::mismatch(tokens.begin(), tokens.begin() + static_cast<int64_t>(most), prompt.begin());
  const int64_t common = differ.first - tokens.begin();
  return recurrent && common < static_cast<int64_t>(tokens.size()) ? 0 : common;
}

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
  draft_from(seen_at(n_past()));
}

Timeline Session::timeline() const {
  return {tokens_, pages_.pages(), draft_pages_ ? draft_pages_->pages() : std::span<const int32_t>(), draft_begin_,
          n_commit_};
}

void Session::truncate(int64_t n) {
  CHECK(n >= 0 && n <= n_past());
  if (n == n_past() && n > 0) return;
  tokens_.resize(static_cast<size_t>(n));
  pages_.truncate(n);
  n_commit_ = 0;
  cut_draft(n);
}

void Session::go_on_from(const Timeline& from, int64_t n) {
  truncate(0);
  tokens_.assign(from.tokens.begin(), from.tokens.begin() + n);
  pages_.share(from.pages.first(static_cast<size_t>((n + kPageTokens - 1) / kPageTokens)));
  n_commit_ = n == static_cast<int64_t>(from.tokens.size()) ? from.n_commit : 0;
  if (!draft_pages_) return;
  draft_pages_->share(from.draft_pages);
  draft_begin_ = from.draft_begin;
  cut_draft(n);
}

Timeline Session::make(std::span<const int32_t> tokens, int64_t draft_begin, int32_t n_commit) {
  truncate(0);
  tokens_.assign(tokens.begin(), tokens.end());
  pages_.reserve(0, n_past());
  n_commit_ = n_commit;
  if (draft_pages_) {
    draft_begin_ = draft_begin;
    draft_pages_->drop_below(draft_begin);
    draft_pages_->reserve(draft_begin, n_past());
  }
  return timeline();
}

/// Forgets the drafter's rows from position n on. Where none are left before, it starts anew with the next page.
void Session::cut_draft(int64_t n) {
  if (!draft_pages_) return;
  draft_pages_->truncate(n);
  draft_begin_ = std::min(draft_begin_, page_start(n + kPageTokens - 1));
  draft_pages_->drop_below(draft_begin_);
}

void Session::draft_from(int64_t pos) {
  if (!draft_pages_) return;
  draft_begin_ = std::max(draft_begin_, page_start(pos));
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
