// The meaning of the bytes: scalar decoding and encoding of rows, the definition that every kernel is compared with.
#pragma once

#include <cstdint>

#include "gguf/types.h"

namespace onebit {

/// Decodes `n` elements (a multiple of the block size). `src`: row_bytes(type, n) bytes of any alignment; `dst`: [n].
/// Throws Error(refused) for a type that is not decodable.
void decode_row(BlockType type, const uint8_t* src, float* dst, int64_t n);

/// Encodes `src` [n] (n a multiple of the block size) into row_bytes(type, n) bytes with the plain rule of each format
/// (q4_0: the extreme value maps to -8, no search). Throws Error(usage) for a type that is not encodable.
void encode_row(BlockType type, const float* src, uint8_t* dst, int64_t n);

/// As encode_row; for q4_0, q4_1, q5_0 and q5_1 it searches each block's scale for the least squared error (never worse
/// than encode_row). `weights` [n] of the squared errors (null: all alike) count for those and for q4_k, q5_k and q6_k.
void encode_row_search(BlockType type, const float* src, uint8_t* dst, int64_t n, const float* weights = nullptr);

}  // namespace onebit
