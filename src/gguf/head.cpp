// Metadata and directory as bytes; the values are stored as they are added.
#include "gguf/head.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "gguf/keys.h"

namespace onebit {
namespace {

constexpr uint32_t kVersion = 3;

uint64_t padding_after(uint64_t size) {
  return (GgufHead::kAlignment - size % GgufHead::kAlignment) % GgufHead::kAlignment;
}

template <class T>
void put(std::vector<uint8_t>& out, T value) {
  const size_t end = out.size();
  out.resize(end + sizeof value);
  std::memcpy(out.data() + end, &value, sizeof value);
}

void put_string(std::vector<uint8_t>& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

}  // namespace

// --- metadata -------------------------------------------------------------------------------------------------------

void GgufHead::set(std::string_view key, ValueType type, ValueType element, uint64_t count,
                   std::vector<uint8_t> bytes) {
  CHECK(!fixed_ && !key.empty());
  if (key == keys::kAlignment) return;
  Entry entry{std::string(key), type, element, count, std::move(bytes)};
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (same == entries_.end()) {
    entries_.push_back(std::move(entry));
  } else {
    *same = std::move(entry);
  }
}

void GgufHead::remove(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
}

template <class T>
void GgufHead::set_number(std::string_view key, ValueType type, T value) {
  std::vector<uint8_t> bytes;
  put(bytes, value);
  set(key, type, type, 1, std::move(bytes));
}

template <class T>
void GgufHead::set_numbers(std::string_view key, ValueType element, const std::vector<T>& values) {
  std::vector<uint8_t> bytes;
  for (const T value : values) put(bytes, value);
  set(key, ValueType::array, element, values.size(), std::move(bytes));
}

void GgufHead::add(std::string_view key, bool value) { set_number<uint8_t>(key, ValueType::boolean, value); }
void GgufHead::add(std::string_view key, uint16_t value) { set_number(key, ValueType::u16, value); }
void GgufHead::add(std::string_view key, uint32_t value) { set_number(key, ValueType::u32, value); }
void GgufHead::add(std::string_view key, int32_t value) { set_number(key, ValueType::i32, value); }
void GgufHead::add(std::string_view key, uint64_t value) { set_number(key, ValueType::u64, value); }
void GgufHead::add(std::string_view key, int64_t value) { set_number(key, ValueType::i64, value); }
void GgufHead::add(std::string_view key, float value) { set_number(key, ValueType::f32, value); }

void GgufHead::add(std::string_view key, std::string_view value) {
  std::vector<uint8_t> bytes;
  put_string(bytes, value);
  set(key, ValueType::string, ValueType::string, 1, std::move(bytes));
}

void GgufHead::add(std::string_view key, const std::vector<bool>& values) {
  set_numbers(key, ValueType::boolean, std::vector<uint8_t>(values.begin(), values.end()));
}
void GgufHead::add(std::string_view key, const std::vector<int32_t>& values) {
  set_numbers(key, ValueType::i32, values);
}
void GgufHead::add(std::string_view key, const std::vector<uint32_t>& values) {
  set_numbers(key, ValueType::u32, values);
}
void GgufHead::add(std::string_view key, const std::vector<float>& values) { set_numbers(key, ValueType::f32, values); }

void GgufHead::add(std::string_view key, const std::vector<std::string>& values) {
  std::vector<uint8_t> bytes;
  for (const std::string& value : values) put_string(bytes, value);
  set(key, ValueType::array, ValueType::string, values.size(), std::move(bytes));
}

void GgufHead::add(std::string_view key, const MetaValue& value) {
  set(key, value.type, value.element, value.count, {value.bytes.begin(), value.bytes.end()});
}

// --- tensors --------------------------------------------------------------------------------------------------------

void GgufHead::declare(std::string_view name, BlockType type, std::span<const int64_t> shape) {
  CHECK(!fixed_);
  const TypeInfo& info = type_info(type);
  const bool sizes_fit = std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size > 0; });
  if (name.empty() || name.size() > 63 || shape.empty() || shape.size() > 4 || !sizes_fit ||
      shape.back() % info.block_elems != 0) {
    fail(ErrorKind::usage,
         "{}: tensor {} {} of {} can't be stored: expected a name of 1 to 63 bytes and 1 to 4 sizes, the last a "
         "multiple of {}",
         name_, printable(name), info.name, shape_text(shape), info.block_elems);
  }
  const bool twice = std::any_of(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
  if (twice) fail(ErrorKind::usage, "{}: tensor {} is declared twice", name_, printable(name));
  int64_t size = row_bytes(type, shape.back());
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    if (__builtin_mul_overflow(size, shape[i], &size)) {
      fail(ErrorKind::usage, "{}: tensor {}: the shape {} overflows", name_, printable(name), shape_text(shape));
    }
  }
  const auto bytes = static_cast<uint64_t>(size);
  tensors_.push_back({std::string(name), type, {shape.begin(), shape.end()}, data_bytes_, bytes});
  data_bytes_ += bytes + padding_after(bytes);
}

std::vector<uint8_t> GgufHead::head_bytes() const {
  std::vector<uint8_t> out = {'G', 'G', 'U', 'F'};
  put<uint32_t>(out, kVersion);
  put<uint64_t>(out, tensors_.size());
  put<uint64_t>(out, entries_.size());
  for (const Entry& entry : entries_) {
    put_string(out, entry.key);
    put(out, entry.type);
    if (entry.type == ValueType::array) {
      put(out, entry.element);
      put<uint64_t>(out, entry.count);
    }
    out.insert(out.end(), entry.bytes.begin(), entry.bytes.end());
  }
  for (const Tensor& tensor : tensors_) {
    put_string(out, tensor.name);
    put<uint32_t>(out, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) put<uint64_t>(out, static_cast<uint64_t>(tensor.shape[i]));
    put(out, tensor.type);
    put<uint64_t>(out, tensor.offset);
  }
  out.resize(out.size() + padding_after(out.size()));
  return out;
}

}  // namespace onebit
