// Rows of quantised weights as they lie in a file -> strips of 16 rows (layout.h).
#pragma once

#include <cstdint>
#include <optional>

#include "backend/cpu/layout.h"
#include "gguf/types.h"

namespace onebit::cpu {

/// The packed form of a block type; nothing for float types and types without kernels.
std::optional<Strip> strip_form(BlockType type);

inline const StripShape& shape_of(Strip form) { return kStripShapes[static_cast<int>(form)]; }

/// Bytes of one strip of `n_in` columns.
int64_t strip_bytes(Strip form, int64_t n_in);

/// Packs `n_row` (1..16) rows of `n_in` columns, row_bytes(type, n_in) bytes apart, into one strip; missing rows become
/// zeros.
void pack_strip(BlockType type, const uint8_t* rows, int n_row, int64_t n_in, uint8_t* strip);

/// The same for f32, f16 and bf16: element (r, i) goes to to + i * to_row + r * its size; `to_row` is in bytes.
void pack_floats(BlockType type, const uint8_t* rows, int n_row, int64_t n_in, uint8_t* to, int64_t to_row);

}  // namespace onebit::cpu
