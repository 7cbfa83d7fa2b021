// Memory for weights, states and scratch: zeroed, aligned, and on large pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace onebit::cpu {

/// Owns a block of memory. Blocks of 2 MB and more start on a 2 MB boundary and ask for huge pages (a strip walk over
/// gigabytes would otherwise miss the TLB every few cache lines); smaller ones are aligned to 64 bytes.
class Pages {
 public:
  Pages() = default;
  /// Throws Error(out_of_memory) when the system refuses.
  explicit Pages(int64_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  uint8_t* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
  void* mapped_ = nullptr;  // the mapping, nullptr for small blocks
  size_t mapped_bytes_ = 0;
};

/// Small blocks side by side on huge pages; they live as long as the object.
class SmallBlocks {
 public:
  explicit SmallBlocks(ThreadPool& pool) : pool_(pool) {}
  /// Zeroed bytes, aligned to 64; at most kMostBytes.
  uint8_t* take(int64_t bytes);

  static constexpr int64_t kMostBytes = int64_t{8} << 20;

 private:
  ThreadPool& pool_;
  std::vector<Pages> chunks_;
  int64_t used_ = 0, ready_ = 0;  // bytes of the last chunk that are given out, and that the system has provided
};

}  // namespace onebit::cpu
