// Quantised activations: the layout of Dtype::act values in this backend and the one function that makes them.
// In: rows of f32. Out: blocks of 32 integer codes with their scale.
#pragma once

#include <cstdint>

#include "plan/op.h"

namespace onebit::ref {

inline constexpr int64_t kActBlock = 32;

/// One block of 32 columns: x ~ scale * code. Rows of K columns have K/32 blocks.
struct ActBlock {
  int8_t codes[kActBlock];
  float scale;
  int32_t sum;  // of the codes
};

/// The int8 grid, or the int4 grid by one of the rules of plan/op.h.
enum class ActGrid { int8, int4_amax, int4_extreme, int4_search };
ActGrid int4_grid(Int4Rule rule);

/// Quantises 32 values. A block whose largest magnitude is below 2^-100 has scale 0 and codes 0; values that are not
/// finite give codes in range and, when infinite, an infinite scale.
ActBlock quantize_block(const float* x, ActGrid grid);

}  // namespace onebit::ref
