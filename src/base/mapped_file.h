// A file's bytes, mapped read-only, or memory that stands for a file. Owns the mapping; views into it must not outlive
// it.
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
  /// Memory for the content of a file that is on no disk, zeroed. Throws Error(out_of_memory).
  static MappedFile in_memory(std::string name, size_t size);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  /// The bytes of one made by in_memory().
  std::span<uint8_t> writable_bytes();
  /// Returns when a part is in memory.
  void fetch(std::span<const uint8_t> part) const;
  /// Tells the system that a part has been copied elsewhere and need not stay resident.
  void release(std::span<const uint8_t> part) const;

 private:
  MappedFile() = default;

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool writable_ = false;
};

}  // namespace onebit
