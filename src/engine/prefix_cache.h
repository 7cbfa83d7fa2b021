// Timelines that were evaluated once and may be gone on from, by any slot: tokens, pages of the caches (shared, not
// copied), and for recurrent models a copy of the state. All memory is reserved when the engine is made; what was least
// useful goes when room is needed.
//
// A list that is searched from end to end: there are at most a few hundred entries, most differ from a prompt within a
// few tokens, and comparing the others costs nothing beside one row of a model.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/pages.h"
#include "engine/session.h"

namespace onebit {

struct PrefixCacheStatus {
  int64_t n_entries = 0;
  int64_t n_states = 0, max_states = 0;  // recurrent states kept; both 0 for attention models
  int64_t n_pages = 0;                   // pages of the target that entries hold, those of running sequences included
  int64_t bytes = 0;                     // of those states and pages, and of the drafter's pages
  int64_t budget_bytes = 0;              // reserved at load, beside the slots' own memory
  int64_t limit_bytes = 0;               // with the pages of the slots, which entries may hold too
  int64_t n_saved = 0, n_evicted = 0;    // entries, since the start
  int64_t n_hits = 0, n_misses = 0;      // requests that began from an entry or a slot's own state, and the others
  int64_t n_reused = 0;                  // tokens that weren't read again
};

class PrefixCache {
 public:
  struct Entry {
    std::vector<int32_t> tokens, pages, draft_pages;
    int64_t draft_begin = 0;
    int32_t slot = -1;  // of the recurrent state
    int32_t n_commit = 0;
    int64_t n_gained = 0;  // tokens that nothing else would save
    int64_t worth = 0;     // the least goes first

    Timeline timeline() const { return {tokens, pages, draft_pages, draft_begin, n_commit}; }
  };
  /// The longest front of a prompt that an entry holds.
  struct Found {
    Entry* entry = nullptr;
    int64_t n = 0;
  };

  /// Registers itself with the pools, which must outlive it.
  PrefixCache(Engine& engine, PagePool& pages, PagePool& draft_pages);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;

  /// Valid until the next save() or anything that takes a page.
  Found find(std::span<const int32_t> prompt);
  /// Keeps a session's state as it is now, unless it is kept already or there is no room for any.
  void save(const Session& session);
  /// Makes a session go on from what was found.
  void restore(const Found& found, Session& session);
  /// Keeps a timeline whose recurrent state (if any) the caller writes to the returned slot, -1 for attention models.
  /// Null when there is no room for any.
  Entry* add(const Timeline& timeline);
  /// Drops the entry that is worth least; false when there is none.
  bool evict();
  /// Drops every entry that is a front of `tokens`; their number.
  int64_t forget(std::span<const int32_t> tokens);
  /// Entries that are a front of `tokens`, but not all of it.
  std::vector<const Entry*> fronts_of(std::span<const int32_t> tokens) const;

  /// A request began with `n_reused` tokens that were evaluated before.
  void count_request(int64_t n_reused);
  PrefixCacheStatus status() const;

 private:
  using Iterator = std::list<Entry>::iterator;
  /// Counts a pool's pages by how many entries hold them.
  struct Held {
    PagePool& pool;
    std::vector<int32_t> holders;  // [n_pages]
    int64_t n = 0;                 // pages with any

    void hold(std::span<const int32_t> pages);
    void give_back(std::span<const int32_t> pages);
  };

  Entry* find_same(std::span<const int32_t> tokens);
  void drop(Iterator entry);

  Engine& engine_;
  Held pages_, draft_pages_;
  std::list<Entry> entries_;  // oldest first
  std::vector<int32_t> free_slots_;
  int64_t level_ = 0;  // worth of the last one that was evicted
  PrefixCacheStatus counts_;
};

}  // namespace onebit
