// Writes Hugging Face checkpoints for tests: a safetensors file from named arrays, config.json beside it.
#pragma once

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/half.h"
#include "support/temp_dir.h"

namespace onebit::test {

/// An array as it lies in a safetensors file.
struct HfArray {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};

inline int64_t count_elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

/// BF16 values start, start + 1, ... modulo 251, over 64: exact in bf16, different in neighbouring rows.
inline HfArray counting_array(const std::vector<int64_t>& shape, int start) {
  HfArray array{"BF16", shape, {}};
  const int64_t n = count_elements(shape);
  array.bytes.resize(static_cast<size_t>(n) * 2);
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = f32_to_bf16(static_cast<float>((start + i) % 251 - 125) / 64);
    std::memcpy(array.bytes.data() + 2 * i, &bits, 2);
  }
  return array;
}

inline std::vector<float> values_of(const HfArray& array) {
  std::vector<float> values(array.bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, array.bytes.data() + 2 * i, 2);
    values[i] = bf16_to_f32(bits);
  }
  return values;
}

/// A safetensors file of this header and data.
inline void write_safetensors(const std::string& path, const std::string& header, const std::vector<uint8_t>& data) {
  std::vector<uint8_t> bytes(8);
  const uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, 8);
  for (const char c : header) bytes.push_back(static_cast<uint8_t>(c));
  bytes.insert(bytes.end(), data.begin(), data.end());
  write_file(path, bytes);
}

inline void write_safetensors(const std::string& path, const std::map<std::string, HfArray>& arrays) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::vector<uint8_t> data;
  for (const auto& [name, array] : arrays) {
    header[name] = {{"dtype", array.dtype},
                    {"shape", array.shape},
                    {"data_offsets", {data.size(), data.size() + array.bytes.size()}}};
    data.insert(data.end(), array.bytes.begin(), array.bytes.end());
  }
  write_safetensors(path, header.dump(), data);
}

/// The arrays of a (bf16) safetensors file.
inline std::map<std::string, HfArray> read_safetensors(const std::string& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  const nlohmann::json header =
      nlohmann::json::parse(bytes.begin() + 8, bytes.begin() + 8 + static_cast<ptrdiff_t>(size));
  std::map<std::string, HfArray> arrays;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto first = bytes.begin() + 8 + static_cast<ptrdiff_t>(size);
    arrays[name] = {
        entry["dtype"],
        entry["shape"],
        {first + entry["data_offsets"][0].get<ptrdiff_t>(), first + entry["data_offsets"][1].get<ptrdiff_t>()}};
  }
  return arrays;
}

inline void write_json(const std::string& path, const nlohmann::json& value) { std::ofstream(path) << value.dump(1); }
inline nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(std::ifstream(path)); }

}  // namespace onebit::test
