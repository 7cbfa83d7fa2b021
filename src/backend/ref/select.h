// The order in which argmax, top_k and route choose columns.
#pragma once

#include <cstdint>
#include <vector>

namespace onebit::ref {

/// Columns of the k largest of x [n], largest first, lowest column first among equals. NaN counts as -infinity.
std::vector<int32_t> largest(const float* x, int64_t n, int64_t k);

}  // namespace onebit::ref
