// Memory for weights, states and scratch: zeroed, aligned, and on large pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace onebit::cpu
