// Pages of attention caches: how many sequences and kept prefixes hold each, and which hold the positions of one
// sequence. A page with several holders is never written: whoever writes next gets a copy of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace onebit {

/// The pages of one StatePool.
class PagePool {
 public:
  /// `copy` copies the content of a page to another.
  PagePool(int64_t n_pages, std::function<void(int32_t from, int32_t to)> copy);

  /// Asked when no page is free: gives pages back and returns true, or false when there is nothing more to give.
  void set_evict(std::function<bool()> evict) { evict_ = std::move(evict); }

  /// A page with one holder. The pool is sized so that there is one once everything evictable has gone.
  int32_t take();
  void hold(int32_t page) { ++holders_[static_cast<size_t>(page)]; }
  void give_back(int32_t page);
  /// `page`, whose caller is one of its holders and wants to write: itself, or a copy when others hold it too.
  int32_t writable(int32_t page);

  int64_t n_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t n_pages() const { return static_cast<int64_t>(holders_.size()); }

 private:
  bool shared(int32_t page) const { return holders_[static_cast<size_t>(page)] > 1; }

  std::function<void(int32_t, int32_t)> copy_;
  std::function<bool()> evict_;
  std::vector<int32_t> holders_;  // [n_pages]
  std::vector<int32_t> free_;
};

/// The pages of one sequence's positions, in order. Entry i covers positions [i, i+1) * kPageTokens; -1: not there.
class PageTable {
 public:
  PageTable(PagePool& pool, int64_t n_ctx);
  ~PageTable() { truncate(0); }
  PageTable(const PageTable&) = delete;

  /// Makes positions [begin, end) writable: the page of `begin` is this table's alone, the others are new or exist.
  void reserve(int64_t begin, int64_t end);
  /// Gives back pages wholly below position `begin`; they are never made again.
  void drop_below(int64_t begin);
  /// Gives back pages wholly at or above position `end`.
  void truncate(int64_t end);
  /// Holds these pages too; the table must be empty.
  void share(std::span<const int32_t> pages);
  std::span<const int32_t> pages() const { return pages_; }

 private:
  PagePool& pool_;
  std::vector<int32_t> pages_;
};

}  // namespace onebit
