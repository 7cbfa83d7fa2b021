#include "engine/draft_feed.h"

#include <algorithm>

namespace onebit {
namespace {

constexpr int64_t kSeenAnew = 32;  // positions, or up to a page more, that a drafter starts with after a long pause

}  // namespace

DraftFeed::DraftFeed(Engine& engine) : engine_(engine) {
  const auto n_slots = static_cast<size_t>(engine.options().n_slots);
  source_rows_.reserve(static_cast<size_t>(engine.target_limits().n_tok) +
                       n_slots * static_cast<size_t>(engine.tap_ring()));
  sequences_.reserve(2 * n_slots);
  fed_.resize(n_slots);
  tapped_.resize(n_slots);
  n_fed_.resize(n_slots);
}

int32_t DraftFeed::tap_row(const Session& session, int64_t pos) const {
  const int64_t ring = engine_.tap_ring();
  return static_cast<int32_t>(engine_.options().n_batch + session.slot() * ring + pos % ring);
}

int32_t DraftFeed::chain_row(const Session& session) const {
  return static_cast<int32_t>(engine_.options().n_batch + engine_.options().n_slots * engine_.tap_ring()) +
         session.slot();
}

int32_t DraftFeed::hidden_before(const Session& session, int64_t pos) const {
  if (pos > tapped_[static_cast<size_t>(session.slot())]) return tap_row(session, pos - 1);
  return static_cast<int32_t>(engine_.options().n_batch + engine_.options().n_slots * (engine_.tap_ring() + 1));
}

void DraftFeed::place_taps(const Session& session, const Sequence& rows, std::vector<int32_t>& to) const {
  for (int32_t i = 0; i < rows.n_tok; ++i) {
    const int64_t pos = rows.pos + i;
    if (pos < session.draft_begin()) {
      to.push_back(-1);
    } else {
      // A prompt's last row is kept for a chained drafter, which starts the next rows from it.
      const bool waits = rows.phase != Phase::prompt || i == rows.n_tok - 1;
      to.push_back(waits ? tap_row(session, pos) : rows.row + i);
    }
  }
}

void DraftFeed::tap_prompt(Session& session, const Sequence& rows) {
  fed_[static_cast<size_t>(session.slot())] = session.n_past();
  const int64_t skipped = std::clamp<int64_t>(session.draft_begin() - rows.pos, 0, rows.n_tok);
  const auto n_rows = static_cast<int32_t>(rows.n_tok - skipped);
  if (n_rows == 0) return;
  sequences_.push_back(session.encode_rows(static_cast<int32_t>(source_rows_.size()), n_rows, rows.pos + skipped));
  n_fed_[static_cast<size_t>(session.slot())] += n_rows;
  const bool chained = engine_.drafter()->chained();
  for (int64_t i = skipped; i < rows.n_tok; ++i) {
    const int64_t pos = rows.pos + i;
    if (chained) {
      tokens_.push_back(session.tokens()[static_cast<size_t>(pos)]);
      source_rows_.push_back(i == 0 ? hidden_before(session, pos) : rows.row + static_cast<int32_t>(i) - 1);
    } else {
      source_rows_.push_back(i == rows.n_tok - 1 ? tap_row(session, pos) : rows.row + static_cast<int32_t>(i));
    }
  }
  tapped_[static_cast<size_t>(session.slot())] = session.n_past() - 1;
}

void DraftFeed::tap_answer(Session& session) {
  if (n_waiting(session) + engine_.options().draft_max + 2 <= engine_.tap_ring()) return;
  if (engine_.drafter()->config().context_rows() == 0) return settle(session);
  session.draft_from(session.n_past() - kSeenAnew);
}

int64_t DraftFeed::n_waiting(const Session& session) const {
  return session.n_past() - std::max(fed_[static_cast<size_t>(session.slot())], session.draft_begin());
}

void DraftFeed::settle(Session& session) {
  if (!engine_.drafter()) return;
  int64_t& fed = fed_[static_cast<size_t>(session.slot())];
  const int64_t begin = std::max(fed, session.draft_begin()), end = session.n_past();
  fed = end;
  if (begin >= end) return;
  n_fed_[static_cast<size_t>(session.slot())] += end - begin;
  const auto row = static_cast<int32_t>(source_rows_.size());
  sequences_.push_back(session.encode_rows(row, static_cast<int32_t>(end - begin), begin));
  const bool chained = engine_.drafter()->chained();
  for (int64_t pos = begin; pos < end; ++pos) {
    if (chained) tokens_.push_back(session.tokens()[static_cast<size_t>(pos)]);
    source_rows_.push_back(chained ? hidden_before(session, pos) : tap_row(session, pos));
  }
}

void DraftFeed::encode() {
  if (sequences_.empty()) return;
  engine_.run_encode({.tokens = tokens_, .sequences = sequences_, .source_rows = source_rows_});
  sequences_.clear();
  tokens_.clear();
  source_rows_.clear();
}

void DraftFeed::restart(const Session& session) {
  fed_[static_cast<size_t>(session.slot())] = session.n_past();
  tapped_[static_cast<size_t>(session.slot())] = session.n_past();
  n_fed_[static_cast<size_t>(session.slot())] = 0;
  sequences_.clear();  // of a step that failed
  tokens_.clear();
  source_rows_.clear();
}

}  // namespace onebit
