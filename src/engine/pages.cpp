#include "engine/pages.h"

#include <algorithm>

#include "base/error.h"
#include "plan/state.h"

namespace onebit {

PagePool::PagePool(int64_t n_pages, std::function<void(int32_t, int32_t)> copy)
    : copy_(std::move(copy)), holders_(static_cast<size_t>(n_pages)) {
  free_.reserve(holders_.size());
  for (int64_t page = n_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int32_t PagePool::take() {
  while (free_.empty() && evict_ && evict_()) {
  }
  CHECK(!free_.empty());
  const int32_t page = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::give_back(int32_t page) {
  int32_t& n = holders_[static_cast<size_t>(page)];
  CHECK(n > 0);
  if (--n == 0) free_.push_back(page);
}

int32_t PagePool::writable(int32_t page) {
  // Evicting may take away the other holders instead of freeing a page.
  while (shared(page) && free_.empty() && evict_ && evict_()) {
  }
  if (!shared(page)) return page;
  const int32_t mine = take();
  copy_(page, mine);
  give_back(page);
  return mine;
}

PageTable::PageTable(PagePool& pool, int64_t n_ctx) : pool_(pool) {
  pages_.reserve(static_cast<size_t>(n_ctx / kPageTokens + 2));
}

void PageTable::reserve(int64_t begin, int64_t end) {
  const auto first = static_cast<size_t>(begin / kPageTokens);
  if (first < pages_.size() && pages_[first] >= 0) pages_[first] = pool_.writable(pages_[first]);
  while (static_cast<int64_t>(pages_.size()) * kPageTokens < end) pages_.push_back(pool_.take());
}

void PageTable::drop_below(int64_t begin) {
  const int64_t n_whole = std::max<int64_t>(begin, 0) / kPageTokens;
  for (int64_t i = 0; i < n_whole; ++i) {
    if (i == static_cast<int64_t>(pages_.size())) {
      pages_.push_back(-1);
    } else if (int32_t& page = pages_[static_cast<size_t>(i)]; page >= 0) {
      pool_.give_back(page);
      page = -1;
    }
  }
}

void PageTable::truncate(int64_t end) {
  while (!pages_.empty() && static_cast<int64_t>(pages_.size() - 1) * kPageTokens >= end) {
    if (pages_.back() >= 0) pool_.give_back(pages_.back());
    pages_.pop_back();
  }
}

void PageTable::share(std::span<const int32_t> pages) {
  CHECK(pages_.empty());
  for (const int32_t page : pages) {
    if (page >= 0) pool_.hold(page);
    pages_.push_back(page);
  }
}

}  // namespace onebit
