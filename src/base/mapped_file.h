// A file's bytes, mapped read-only. Owns the mapping; views into it must not outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace onebit {

class MappedFile {
 public:
  /// Maps `path`. Throws Error(refused) when it can't be opened, is not a regular file, or is empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  /// Tells the system that a part has been copied elsewhere and need not stay resident.
  void release(std::span<const uint8_t> part) const;

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace onebit
