// The table of block types.
#include "gguf/types.h"

#include <array>
#include <cctype>

#include "base/error.h"

namespace onebit {
namespace {

using enum BlockType;

// Sorted by id. Ids 4, 5, 31..33 and 36..38 are retired layouts and stay unknown.
constexpr std::array kTypes = {
    TypeInfo{f32, "f32", 1, 4, false, true, true},
    TypeInfo{f16, "f16", 1, 2, false, true, true},
    TypeInfo{q4_0, "q4_0", 32, 18, true, true, true},
    TypeInfo{q4_1, "q4_1", 32, 20, true, true, true},
    TypeInfo{q5_0, "q5_0", 32, 22, true, true, true},
    TypeInfo{q5_1, "q5_1", 32, 24, true, true, true},
    TypeInfo{q8_0, "q8_0", 32, 34, true, true, true},
    TypeInfo{q8_1, "q8_1", 32, 36, true, false, false},
    TypeInfo{q2_k, "q2_k", 256, 84, true, true, false},
    TypeInfo{q3_k, "q3_k", 256, 110, true, true, false},
    TypeInfo{q4_k, "q4_k", 256, 144, true, true, true},
    TypeInfo{q5_k, "q5_k", 256, 176, true, true, true},
    TypeInfo{q6_k, "q6_k", 256, 210, true, true, true},
    TypeInfo{q8_k, "q8_k", 256, 292, true, false, false},
    TypeInfo{iq2_xxs, "iq2_xxs", 256, 66, true, false, false},
    TypeInfo{iq2_xs, "iq2_xs", 256, 74, true, false, false},
    TypeInfo{iq3_xxs, "iq3_xxs", 256, 98, true, false, false},
    TypeInfo{iq1_s, "iq1_s", 256, 50, true, false, false},
    TypeInfo{iq4_nl, "iq4_nl", 32, 18, true, true, false},
    TypeInfo{iq3_s, "iq3_s", 256, 110, true, false, false},
    TypeInfo{iq2_s, "iq2_s", 256, 82, true, false, false},
    TypeInfo{iq4_xs, "iq4_xs", 256, 136, true, true, false},
    TypeInfo{i8, "i8", 1, 1, false, false, false},
    TypeInfo{i16, "i16", 1, 2, false, false, false},
    TypeInfo{i32, "i32", 1, 4, false, false, false},
    TypeInfo{i64, "i64", 1, 8, false, false, false},
    TypeInfo{f64, "f64", 1, 8, false, false, false},
    TypeInfo{iq1_m, "iq1_m", 256, 56, true, false, false},
    TypeInfo{bf16, "bf16", 1, 2, false, true, true},
    TypeInfo{tq1_0, "tq1_0", 256, 54, true, false, false},
    TypeInfo{tq2_0, "tq2_0", 256, 66, true, false, false},
    TypeInfo{mxfp4, "mxfp4", 32, 17, true, true, false},
    TypeInfo{nvfp4, "nvfp4", 64, 36, true, false, false},
    TypeInfo{q1_0, "q1_0", 128, 18, true, false, false},
    TypeInfo{q2_0, "q2_0", 64, 18, true, false, false},
};

const TypeInfo* find_type(uint32_t id) {
  for (const TypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == id) return &info;
  }
  return nullptr;
}

}  // namespace

bool known_type(uint32_t id) { return find_type(id) != nullptr; }

const TypeInfo& type_info(BlockType type) {
  const TypeInfo* info = find_type(static_cast<uint32_t>(type));
  CHECK(info);
  return *info;
}

std::optional<BlockType> parse_type(std::string_view name) {
  for (const TypeInfo& info : kTypes) {
    const std::string_view candidate = info.name;
    bool equal = candidate.size() == name.size();
    for (size_t i = 0; equal && i < name.size(); ++i) {
      equal = std::tolower(static_cast<unsigned char>(name[i])) == candidate[i];
    }
    if (equal) return info.type;
  }
  return std::nullopt;
}

int64_t row_bytes(BlockType type, int64_t n) {
  const TypeInfo& info = type_info(type);
  CHECK(n >= 0 && n % info.block_elems == 0);
  return n / info.block_elems * info.block_bytes;
}

}  // namespace onebit
