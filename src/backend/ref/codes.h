// The integer form of quantised weights: small integer codes with one scale (and one minimum) per group.
// In: a row's bytes as in the file. Out: codes, scales, minimums; w = scale * code - min reproduces gguf/blocks.h.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/types.h"

namespace onebit::ref {

/// One row of K weights. Element i belongs to group i / group.
struct CodedRow {
  int64_t group = 32;         // 32, or 16 for q2_k, q3_k and q6_k
  std::vector<int8_t> codes;  // [K]
  std::vector<float> scale;   // [K / group]
  std::vector<float> min;     // [K / group], empty when the type has none
};

/// True for the quantised types that have an integer form; false for f32, f16, bf16 and types that can't be decoded.
bool has_codes(BlockType type);

/// Reads a row of `n` weights, row_bytes(type, n) bytes at `src`, into `row` (its storage is reused).
void read_codes(BlockType type, const uint8_t* src, int64_t n, CodedRow& row);

}  // namespace onebit::ref
