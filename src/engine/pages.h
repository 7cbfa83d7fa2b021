// Pages of attention caches: which are free, and which hold the positions of one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace onebit {

/// The free pages of one StatePool.
class PagePool {
 public:
  explicit PagePool(int64_t n_pages);
  int32_t take();  // the pool is sized so that it can't run out
  void give_back(int32_t page) { free_.push_back(page); }
  int64_t n_free() const { return static_cast<int64_t>(free_.size()); }

 private:
  std::vector<int32_t> free_;
};

/// The pages of one sequence's positions, in order. Entry i covers positions [i, i+1) * kPageTokens; -1: given back.
class PageTable {
 public:
  PageTable(PagePool& pool, int64_t n_ctx);
  ~PageTable() { truncate(0); }
  PageTable(const PageTable&) = delete;

  /// Makes pages for positions up to `end` (exclusive).
  void reserve(int64_t end);
  /// Gives back pages wholly below position `begin`; they are never made again.
  void drop_below(int64_t begin);
  /// Gives back pages wholly at or above position `end`.
  void truncate(int64_t end);
  std::span<const int32_t> pages() const { return pages_; }

 private:
  PagePool& pool_;
  std::vector<int32_t> pages_;
};

}  // namespace onebit
