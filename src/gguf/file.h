// A GGUF file: owns the mapping (or views a caller's bytes), gives metadata by key and the tensor directory.
// In: a path or a span of bytes, trusted in nothing. Out: checked values; tensor shapes outermost first.
// Everything from the file is checked here, once: a GgufFile that exists has only in-bounds, aligned, sized tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "gguf/types.h"

namespace onebit {

/// Types of metadata values; the values are the ids of the file format.
enum class ValueType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// "u32", "string", "array" ...
const char* value_type_name(ValueType type);

/// Bytes of one stored number; not for strings and arrays.
uint64_t value_bytes(ValueType type);

/// A metadata value as it lies in the file; the numbers are decoded on access.
struct MetaValue {
  ValueType type = ValueType::u32;
  ValueType element = ValueType::u32;  ///< element type when type is array, else equal to type
  uint64_t count = 1;                  ///< elements when type is array, else 1
  std::span<const uint8_t> bytes;      ///< the elements as stored (strings: u64 length + bytes, one after another)
};

struct MetaEntry {
  std::string key;
  MetaValue value;
};

/// One tensor of the directory. `data` lives as long as the GgufFile (or the caller's bytes).
struct TensorInfo {
  std::string name;
  BlockType type = BlockType::f32;
  std::vector<int64_t> shape;  ///< outermost first, 1 to 4 sizes, each > 0; the last is the contiguous one
  std::span<const uint8_t> data;

  int64_t n_elements() const;
  int64_t n_cols() const { return shape.back(); }             ///< length of a row (K, inputs)
  int64_t n_rows() const { return n_elements() / n_cols(); }  ///< all outer dimensions together
  int64_t row_bytes() const { return onebit::row_bytes(type, n_cols()); }
};

/// "[4096, 2560]"
std::string shape_text(std::span<const int64_t> shape);

/// Text from a file made safe for a message: control bytes and non-ASCII shown as \xNN, cut after 100 bytes.
std::string printable(std::string_view text);

class GgufFile {
 public:
  /// Opens a file of version 2 or 3; for the first part of a split file (-00001-of-000NN) all its parts.
  /// Throws Error(refused) naming what is wrong and where.
  static GgufFile open(const std::string& path);
  /// Reads a single file from the caller's bytes, which must outlive the object. `name` stands for the path in
  /// messages.
  static GgufFile from_memory(std::span<const uint8_t> bytes, std::string name = "memory");
  /// Takes over one whole file.
  static GgufFile from_mapping(MappedFile mapping);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  /// Sum over all parts.
  uint64_t file_bytes() const { return file_bytes_; }
  /// Value of general.architecture; refused when missing.
  std::string architecture() const;

  /// All metadata in file order (of the first part).
  const std::vector<MetaEntry>& metadata() const { return metadata_; }
  const MetaValue* find_value(std::string_view key) const;
  bool has(std::string_view key) const { return find_value(key) != nullptr; }

  /// The value of `key`, nothing when it is absent. T: bool, int32_t, uint32_t, int64_t, uint64_t, float, double,
  /// std::string, or std::vector of one of these. Integer widths (and bool) convert with a range check, integers widen
  /// to float types; anything else throws Error(refused) naming key, wanted and found type.
  template <class T>
  std::optional<T> get(std::string_view key) const;
  /// As get, but a missing key is refused too.
  template <class T>
  T require(std::string_view key) const;
  template <class T>
  T get_or(std::string_view key, T fallback) const {
    std::optional<T> value = get<T>(key);
    return value ? std::move(*value) : std::move(fallback);
  }
  /// A key that is one number for all layers or an array of at least `n` numbers: always `n` numbers. Empty when
  /// absent.
  template <class T>
  std::vector<T> get_per_layer(std::string_view key, int64_t n) const;
  /// Strings of an array without copying; views into the file.
  std::optional<std::vector<std::string_view>> get_string_views(std::string_view key) const;

  /// All tensors, of all parts, in file order.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  /// As find, but a missing tensor is refused by name.
  const TensorInfo& tensor(std::string_view name) const;

  /// Returns when a part of a tensor's data is in memory.
  void fetch(std::span<const uint8_t> data) const;
  /// Tells the system that the tensor's pages need not stay resident (no effect on in-memory files).
  void release(const TensorInfo& tensor) const;

 private:
  GgufFile() = default;
  void open_other_parts();
  void index_metadata();
  void index_tensors();
  const MappedFile* part_with(std::span<const uint8_t> data) const;

  std::string path_;
  uint32_t version_ = 0;
  uint64_t file_bytes_ = 0;
  std::vector<MappedFile> parts_;
  std::vector<MetaEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> key_index_;     // views into metadata_
  std::unordered_map<std::string_view, size_t> tensor_index_;  // views into tensors_
};

}  // namespace onebit
