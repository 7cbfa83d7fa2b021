// The head of a GGUF file as it is being put together: metadata and the tensor directory. In: typed values, shapes
// (outermost first). Out: its bytes, and where each tensor's data goes behind them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace onebit {

class GgufHead {
 public:
  static constexpr uint64_t kAlignment = 32;  // of every tensor's data: the format's default, so no key is needed

  /// `name` stands for the file in messages.
  explicit GgufHead(std::string name) : name_(std::move(name)) {}

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

  struct Tensor {
    std::string name;
    BlockType type;
    std::vector<int64_t> shape;
    uint64_t offset, size;  // of its data, from the end of the head
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }
  size_t n_entries() const { return entries_.size(); }
  /// Bytes of all declared tensors, padding included.
  uint64_t data_bytes() const { return data_bytes_; }
  /// The head of the file, padded.
  std::vector<uint8_t> head_bytes() const;

 protected:
  bool fixed_ = false;  // nothing may be added any more

 private:
  struct Entry {
    std::string key;
    ValueType type, element;
    uint64_t count;
    std::vector<uint8_t> bytes;
  };
  void set(std::string_view key, ValueType type, ValueType element, uint64_t count, std::vector<uint8_t> bytes);
  template <class T>
  void set_number(std::string_view key, ValueType type, T value);
  template <class T>
  void set_numbers(std::string_view key, ValueType element, const std::vector<T>& values);

  std::string name_;
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  uint64_t data_bytes_ = 0;
};

}  // namespace onebit
