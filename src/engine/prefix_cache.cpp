// Worth is what an entry saves over the next shorter one, on top of the level at which the last one was evicted: the
// level rises with every eviction, so what isn't used again is overtaken by what is, the sooner the less it saves.
#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/error.h"

namespace onebit {
namespace {

bool is_front(std::span<const int32_t> front, std::span<const int32_t> of) {
  return front.size() <= of.size() && std::equal(front.begin(), front.end(), of.begin());
}

}  // namespace

void PrefixCache::Held::hold(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    if (page < 0) continue;
    pool.hold(page);
    if (holders[static_cast<size_t>(page)]++ == 0) ++n;
  }
}

void PrefixCache::Held::give_back(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    if (page < 0) continue;
    pool.give_back(page);
    if (--holders[static_cast<size_t>(page)] == 0) --n;
  }
}

PrefixCache::PrefixCache(Engine& engine, PagePool& pages, PagePool& draft_pages)
    : engine_(engine),
      pages_{pages, std::vector<int32_t>(static_cast<size_t>(pages.n_pages()))},
      draft_pages_{draft_pages, std::vector<int32_t>(static_cast<size_t>(draft_pages.n_pages()))} {
  const auto n_slots = engine.options().n_slots;
  if (engine_.recurrent()) {
    for (int32_t i = static_cast<int32_t>(engine.cache_sizes().n_entries); i-- > 0;) free_slots_.push_back(n_slots + i);
  }
  for (PagePool* pool : {&pages, &draft_pages}) pool->set_evict([this] { return evict(); });
}

PrefixCache::~PrefixCache() {
  while (!entries_.empty()) drop(entries_.begin());
  for (Held* held : {&pages_, &draft_pages_}) held->pool.set_evict(nullptr);
}

PrefixCache::Found PrefixCache::find(std::span<const int32_t> prompt) {
  Found best;
  for (Entry& entry : entries_) {
    const int64_t n = reusable(entry.tokens, prompt, engine_.recurrent());
    if (n > best.n || (n > 0 && n == best.n && entry.draft_begin < best.entry->draft_begin)) best = {&entry, n};
  }
  return best;
}

PrefixCache::Entry* PrefixCache::find_same(std::span<const int32_t> tokens) {
  for (Entry& entry : entries_) {
    if (entry.tokens.size() == tokens.size() && is_front(tokens, entry.tokens)) return &entry;
  }
  return nullptr;
}

void PrefixCache::save(const Session& session) {
  const Timeline timeline = session.timeline();
  if (timeline.tokens.empty()) return;
  if (Entry* same = find_same(timeline.tokens); same && same->draft_begin <= timeline.draft_begin) {
    same->worth = level_ + same->n_gained;
    return;
  }
  const Entry* entry = add(timeline);
  if (entry && entry->slot >= 0) engine_.target_states().copy_slot(session.slot(), entry->slot);
}

PrefixCache::Entry* PrefixCache::add(const Timeline& timeline) {
  if (engine_.cache_sizes().n_entries == 0) return nullptr;
  Entry entry;
  entry.tokens.assign(timeline.tokens.begin(), timeline.tokens.end());
  entry.pages.assign(timeline.pages.begin(), timeline.pages.end());
  entry.draft_pages.assign(timeline.draft_pages.begin(), timeline.draft_pages.end());
  entry.draft_begin = timeline.draft_begin;
  entry.n_commit = timeline.n_commit;
  // Held before anything is evicted, so that they stay.
  pages_.hold(entry.pages);
  draft_pages_.hold(entry.draft_pages);
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->tokens != entry.tokens) continue;
    drop(it);
    break;
  }
  while (static_cast<int64_t>(entries_.size()) >= engine_.cache_sizes().n_entries) evict();
  int64_t before = 0;
  for (const Entry& other : entries_)
    before = std::max(before, reusable(other.tokens, entry.tokens, engine_.recurrent()));
  entry.n_gained = static_cast<int64_t>(entry.tokens.size()) - before;
  entry.worth = level_ + entry.n_gained;
  if (engine_.recurrent()) {
    CHECK(!free_slots_.empty());
    entry.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  ++counts_.n_saved;
  return &entries_.emplace_back(std::move(entry));
}

void PrefixCache::restore(const Found& found, Session& session) {
  found.entry->worth = level_ + found.entry->n_gained;
  if (found.entry->slot >= 0) engine_.target_states().copy_slot(found.entry->slot, session.slot());
  session.go_on_from(found.entry->timeline(), found.n);
}

bool PrefixCache::evict() {
  const auto least = std::min_element(entries_.begin(), entries_.end(),
                                      [](const Entry& a, const Entry& b) { return a.worth < b.worth; });
  if (least == entries_.end()) return false;
  level_ = least->worth;
  ++counts_.n_evicted;
  drop(least);
  return true;
}

void PrefixCache::drop(Iterator entry) {
  pages_.give_back(entry->pages);
  draft_pages_.give_back(entry->draft_pages);
  if (entry->slot >= 0) free_slots_.push_back(entry->slot);
  entries_.erase(entry);
}

int64_t PrefixCache::forget(std::span<const int32_t> tokens) {
  int64_t n = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto next = std::next(it);
    if (is_front(it->tokens, tokens)) drop(it), ++n;
    it = next;
  }
  return n;
}

std::vector<const PrefixCache::Entry*> PrefixCache::fronts_of(std::span<const int32_t> tokens) const {
  std::vector<const Entry*> fronts;
  for (const Entry& entry : entries_) {
    if (entry.tokens.size() < tokens.size() && is_front(entry.tokens, tokens)) fronts.push_back(&entry);
  }
  return fronts;
}

void PrefixCache::count_request(int64_t n_reused) {
  ++(n_reused > 0 ? counts_.n_hits : counts_.n_misses);
  counts_.n_reused += n_reused;
}

PrefixCacheStatus PrefixCache::status() const {
  PrefixCacheStatus status = counts_;
  const PrefixCacheSizes& sizes = engine_.cache_sizes();
  status.n_entries = static_cast<int64_t>(entries_.size());
  if (engine_.recurrent()) {
    status.max_states = sizes.n_entries;
    status.n_states = sizes.n_entries - static_cast<int64_t>(free_slots_.size());
  }
  status.n_pages = pages_.n;
  status.budget_bytes = sizes.bytes();
  status.limit_bytes = sizes.n_entries * sizes.entry_bytes + pages_.pool.n_pages() * sizes.page_bytes +
                       draft_pages_.pool.n_pages() * sizes.draft_page_bytes;
  status.bytes =
      status.n_states * sizes.slot_bytes + pages_.n * sizes.page_bytes + draft_pages_.n * sizes.draft_page_bytes;
  return status;
}

}  // namespace onebit
