// The block types of GGUF files: ids, names and sizes. No I/O; the meaning of the bytes is in blocks.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace onebit {

/// Type of a tensor's elements; the values are the ids of GGUF tensor infos.
enum class BlockType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q8_1 = 9,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  q8_k = 15,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
  nvfp4 = 40,
  q1_0 = 41,
  q2_0 = 42,
};

struct TypeInfo {
  BlockType type;
  const char* name;     ///< lower case, as on the command line: "q4_0"
  int32_t block_elems;  ///< elements per block
  int32_t block_bytes;  ///< bytes per block
  bool quantised;       ///< a block shares scales (false for f32, f16, bf16 and integers)
  bool decodable;       ///< decode_row understands it
  bool encodable;       ///< encode_row produces it
};

/// True when `id` names a type of this table (an id from a file must pass here before it becomes a BlockType).
bool known_type(uint32_t id);

/// The row of the table. The type must be a known one.
const TypeInfo& type_info(BlockType type);

/// Name, any case ("q4_0", "Q4_K"), to type; nothing when there is no such type.
std::optional<BlockType> parse_type(std::string_view name);

inline const char* type_name(BlockType type) { return type_info(type).name; }

/// Bytes of a row of `n` elements; n must be a multiple of the block size.
int64_t row_bytes(BlockType type, int64_t n);

}  // namespace onebit
