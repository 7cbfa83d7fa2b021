// A dense f32 product on this machine's processor, for work beside the model: statistics and rounding of weights.
#pragma once

#include <cstdint>

namespace onebit {

/// c [m, n] (+)= a [m, k] * b [k, n]. Element (i, p) of a is a[i * a_row + p * a_col]; rows of b and c are b_row and
/// c_row elements apart. `add`: c is added to, else overwritten. Sums run over p in ascending order, fused where the
/// processor can. One thread: callers divide the work.
void host_gemm(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_row, float* c, int64_t c_row,
               int64_t m, int64_t n, int64_t k, bool add);

}  // namespace onebit
