// Tiny weights for tests: given or random floats, and random blocks of every type with scales of a sane size.
// A TestWeight owns its bytes and must stay where it is while a plan or backend uses it.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "gguf/blocks.h"
#include "plan/weight.h"

namespace onebit::test {

struct TestWeight {
  std::vector<uint8_t> bytes;
  Weight weight;

  TestWeight() = default;
  TestWeight(const TestWeight&) = delete;
  TestWeight& operator=(const TestWeight&) = delete;
};

inline int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

/// Approximately normal with standard deviation 1: the sum of four uniform numbers of 16 bits.
inline float random_normal(Rng& rng) {
  const uint64_t bits = rng.next();
  const int sum = static_cast<int>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  return static_cast<float>(sum - 2 * 0xffff) * (1.7320508f / 65536);
}

inline std::vector<float> random_values(Rng& rng, int64_t n, float scale = 1) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = random_normal(rng) * scale;
  return values;
}

inline void set_weight(TestWeight& to, const std::string& name, BlockType type, std::vector<int64_t> shape,
                       std::vector<uint8_t> bytes) {
  to.bytes = std::move(bytes);
  to.weight = {name, type, std::move(shape), to.bytes, false, false};
}

/// An f32 weight with these values.
inline void set_floats(TestWeight& to, const std::string& name, std::vector<int64_t> shape,
                       const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  set_weight(to, name, BlockType::f32, std::move(shape), std::move(bytes));
}

/// Byte offsets of a block's f16 scales: they must not be random, or most blocks would be huge or not finite.
inline std::vector<int> scale_offsets(BlockType type) {
  switch (type) {
    case BlockType::q4_0:
    case BlockType::q5_0:
    case BlockType::q8_0:
    case BlockType::iq4_nl:
    case BlockType::iq4_xs:
      return {0};
    case BlockType::q4_1:
    case BlockType::q5_1:
    case BlockType::q4_k:
    case BlockType::q5_k:
      return {0, 2};
    case BlockType::q2_k:
      return {80, 82};
    case BlockType::q3_k:
      return {108};
    case BlockType::q6_k:
      return {208};
    default:
      return {};
  }
}

/// What codes a random weight gets: all of them, or only each byte's extremes (0x00 and 0xff, 0x80 and 0x7f).
enum class Codes { any, extreme };

/// A weight of any decodable type: every code and sub-block scale may occur, f16 scales are 2^-7..2^-6 of either sign.
inline void set_random(TestWeight& to, Rng& rng, const std::string& name, BlockType type, std::vector<int64_t> shape,
                       Codes codes = Codes::any) {
  const int64_t n = element_count(shape), n_row = n / shape.back();
  std::vector<uint8_t> bytes(static_cast<size_t>(n_row * row_bytes(type, shape.back())));
  const TypeInfo& info = type_info(type);
  if (!info.quantised) {
    encode_row(type, random_values(rng, n, 0.25f).data(), bytes.data(), n);
    return set_weight(to, name, type, std::move(shape), std::move(bytes));
  }
  constexpr uint8_t kExtremes[] = {0x00, 0xff, 0x80, 0x7f, 0x88, 0x77};
  for (uint8_t& byte : bytes) byte = codes == Codes::any ? static_cast<uint8_t>(rng.next()) : kExtremes[rng.next() % 6];
  for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(info.block_bytes)) {
    for (int offset : scale_offsets(type)) {
      const double scale = (1 + rng.uniform()) / 128 * (rng.next() % 2 ? 1 : -1);
      const uint16_t half = f32_to_f16(static_cast<float>(scale));
      std::memcpy(bytes.data() + block + static_cast<size_t>(offset), &half, 2);
    }
    if (type == BlockType::mxfp4) bytes[block] = static_cast<uint8_t>(118 + rng.next() % 6);
  }
  set_weight(to, name, type, std::move(shape), std::move(bytes));
}

/// All values of a weight, decoded.
inline std::vector<float> decoded(const Weight& weight) {
  std::vector<float> values(static_cast<size_t>(element_count(weight.shape)));
  decode_row(weight.type, weight.data.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

/// The types that decode_row understands.
inline std::vector<BlockType> decodable_types() {
  std::vector<BlockType> types;
  for (uint32_t id = 0; id < 64; ++id) {
    if (known_type(id) && type_info(static_cast<BlockType>(id)).decodable) types.push_back(static_cast<BlockType>(id));
  }
  return types;
}

}  // namespace onebit::test
