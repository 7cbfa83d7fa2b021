#include "backend/cpu/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace onebit::cpu {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr int64_t kChunk = int64_t{64} << 20;  // of small blocks
constexpr size_t kSlack = 8192;  // kernels prefetch past the end, and read up to 512 bytes there without using them

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Pages::Pages(int64_t bytes) : bytes_(bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (size < kHuge) {
    data_ = static_cast<uint8_t*>(std::aligned_alloc(64, rounded(size + kSlack, 64)));
    if (!data_) fail(ErrorKind::out_of_memory, "the system has no {} bytes left", bytes);
    std::memset(data_, 0, size + 512);
    return;
  }
  mapped_bytes_ = rounded(size, 4096) + kHuge + kSlack;
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    fail(ErrorKind::out_of_memory, "the system has no {} bytes left", bytes);
  }
  data_ = reinterpret_cast<uint8_t*>(rounded(reinterpret_cast<size_t>(mapped_), kHuge));
  madvise(data_, rounded(size, 4096), MADV_HUGEPAGE);  // advice: a refusal only costs speed
}

Pages::~Pages() {
  if (mapped_) {
    munmap(mapped_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

// Threads that first touch the same huge page at the same time would each have the system clear one, and all but one of
// them are thrown away. So each provides pages of its own here, before anybody writes.
uint8_t* SmallBlocks::take(int64_t bytes) {
  CHECK(bytes <= kMostBytes);
  bytes = static_cast<int64_t>(rounded(static_cast<size_t>(bytes), 64));
  if (chunks_.empty() || used_ + bytes > kChunk) {
    chunks_.emplace_back(kChunk);
    used_ = ready_ = 0;
  }
  uint8_t* const chunk = chunks_.back().data();
  uint8_t* const block = chunk + used_;
  used_ += bytes;
  for (constexpr auto kStep = static_cast<int64_t>(kHuge); ready_ < used_; ready_ += kStep * pool_.size()) {
    pool_.run([&](int thread) {
      const int64_t mine = ready_ + kStep * thread;
      if (mine < kChunk) const_cast<volatile uint8_t*>(chunk)[mine] = 0;
    });
  }
  return block;
}

}  // namespace onebit::cpu
