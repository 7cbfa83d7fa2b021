// Writes a GGUF file: metadata and the tensor directory first, then tensor data streamed in the declared order.
// In: typed metadata, tensor shapes (outermost first), bytes. Out: a verified file under its final name, or nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/head.h"

namespace onebit {

/// The file is built without a name (or under a temporary one, where the file system can't do that) beside its final
/// place. finish() checks that it reads back, syncs it and gives it the name; without finish() nothing is left behind.
class GgufWriter : public GgufHead {
 public:
  enum class Temporary { unnamed, named };

  /// Opens the temporary file. Throws Error(runtime) when the folder can't be written.
  explicit GgufWriter(const std::string& path, Temporary temporary = Temporary::unnamed);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  /// Appends data of the declared tensors, in order; the calls need not end at tensor boundaries but must not cross
  /// one. The first call writes the head of the file. Throws Error(runtime), e.g. when the disk is full.
  void write(std::string_view name, std::span<const uint8_t> bytes);

  /// Completes the file: every declared tensor must be written. Reads it back, lets `check` (if any) refuse it, syncs,
  /// renames to the final path.
  void finish(const std::function<void(const GgufFile&)>& check = {});

  /// Completes the file as finish() does and lets `check` see it, but leaves it without its name.
  void review(const std::function<void(const GgufFile&)>& check);

  /// Drops everything written so far. Called by the destructor when finish() was not reached.
  void abandon() noexcept;

  /// Bytes written so far.
  uint64_t written() const { return written_; }

 private:
  void write_head();
  void append(std::span<const uint8_t> bytes);
  void pad();
  void verify(const std::function<void(const GgufFile&)>& check) const;
  void give_name();

  std::string path_, folder_, temporary_path_;
  int fd_ = -1;
  bool named_ = false;            // temporary_path_ exists
  size_t current_ = 0;            // tensor being written
  uint64_t current_written_ = 0;  // bytes of it
  uint64_t written_ = 0;          // size of the file so far
};

}  // namespace onebit
