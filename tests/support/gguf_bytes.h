// Builds GGUF files field by field, so that a test can break any of them. Nothing is checked here.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace onebit::test {

class GgufBytes {
 public:
  std::vector<uint8_t> bytes;

  template <class T>
  GgufBytes& put(T value) {
    const size_t end = bytes.size();
    bytes.resize(end + sizeof value);
    std::memcpy(bytes.data() + end, &value, sizeof value);
    return *this;
  }
  GgufBytes& text(std::string_view value) {
    put<uint64_t>(value.size());
    for (const char c : value) bytes.push_back(static_cast<uint8_t>(c));
    return *this;
  }
  GgufBytes& header(uint64_t n_tensors, uint64_t n_entries, uint32_t version = 3) {
    return put<uint32_t>(0x46554747).put(version).put(n_tensors).put(n_entries);
  }
  /// A key with a plain number of the given value type id.
  template <class T>
  GgufBytes& entry(std::string_view key, uint32_t type, T value) {
    return text(key).put(type).put(value);
  }
  GgufBytes& entry(std::string_view key, std::string_view value) { return text(key).put<uint32_t>(8).text(value); }
  /// Head of an array; its elements follow.
  GgufBytes& array(std::string_view key, uint32_t element, uint64_t count) {
    return text(key).put<uint32_t>(9).put(element).put(count);
  }
  /// A tensor record; `dims` in file order, contiguous first.
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    text(name).put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) put(dim);
    return put(type).put(offset);
  }
  /// Pads to the alignment and appends the data section: `size` bytes 0, 1, 2 ...
  GgufBytes& data(size_t size, size_t alignment = 32) {
    while (bytes.size() % alignment != 0) bytes.push_back(0);
    for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<uint8_t>(i));
    return *this;
  }
};

}  // namespace onebit::test
