// Writes a GGUF file: metadata and the tensor directory first, then tensor data streamed in the declared order.
// In: typed metadata, tensor shapes (outermost first), bytes. Out: a verified file under its final name, or nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace onebit {

/// The file is built without a name (or under a temporary one, where the file system can't do that) beside its final
/// place. finish() checks that it reads back, syncs it and gives it the name; without finish() nothing is left behind.
class GgufWriter {
 public:
  enum class Temporary { unnamed, named };

  /// Opens the temporary file. Throws Error(runtime) when the folder can't be written.
  explicit GgufWriter(const std::string& path, Temporary temporary = Temporary::unnamed);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  /// Metadata; a key given twice replaces the earlier value in its place. general.alignment is left out: the data of a
  /// file written here has the default alignment.
  void add(std::string_view key, bool value);
  void add(std::string_view key, uint16_t value);
  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, int32_t value);
  void add(std::string_view key, uint64_t value);
  void add(std::string_view key, int64_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, const std::vector<bool>& values);
  void add(std::string_view key, const std::vector<int32_t>& values);
  void add(std::string_view key, const std::vector<uint32_t>& values);
  void add(std::string_view key, const std::vector<float>& values);
  void add(std::string_view key, const std::vector<std::string>& values);
  /// Copies a value of another file, type and bytes.
  void add(std::string_view key, const MetaValue& value);
  void remove(std::string_view key);

  /// Adds a tensor to the directory. Shape outermost first. Throws Error(usage) for a shape that the format can't hold.
  void declare(std::string_view name, BlockType type, std::span<const int64_t> shape);

  /// Appends data of the declared tensors, in order; the calls need not end at tensor boundaries but must not cross
  /// one. The first call writes the head of the file. Throws Error(runtime), e.g. when the disk is full.
  void write(std::string_view name, std::span<const uint8_t> bytes);

  /// Completes the file: every declared tensor must be written. Reads it back, lets `check` (if any) refuse it, syncs,
  /// renames to the final path.
  void finish(const std::function<void(const GgufFile&)>& check = {});

  /// Drops everything written so far. Called by the destructor when finish() was not reached.
  void abandon() noexcept;

  /// Bytes written so far.
  uint64_t written() const { return written_; }

 private:
  struct Entry {
    std::string key;
    ValueType type, element;
    uint64_t count;
    std::vector<uint8_t> bytes;
  };
  struct Tensor {
    std::string name;
    BlockType type;
    std::vector<int64_t> shape;
    uint64_t offset, size;
  };
  void set(std::string_view key, ValueType type, ValueType element, uint64_t count, std::vector<uint8_t> bytes);
  template <class T>
  void set_number(std::string_view key, ValueType type, T value);
  template <class T>
  void set_numbers(std::string_view key, ValueType element, const std::vector<T>& values);
  std::vector<uint8_t> head() const;
  void write_head();
  void append(std::span<const uint8_t> bytes);
  void pad();
  void verify(const std::function<void(const GgufFile&)>& check) const;
  void give_name();

  std::string path_, folder_, temporary_path_;
  int fd_ = -1;
  bool named_ = false;  // temporary_path_ exists
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  bool head_written_ = false;
  size_t current_ = 0;            // tensor being written
  uint64_t current_written_ = 0;  // bytes of it
  uint64_t data_bytes_ = 0;       // of all declared tensors, padding included
  uint64_t written_ = 0;          // size of the file so far
};

}  // namespace onebit
