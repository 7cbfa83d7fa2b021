// How closely results must agree: the one table from tolerance classes (plan/op.h) to error bounds.
// In: an expected and an actual array, a class, how many terms were summed and how large the operands were.
// Out: a message naming the worst element, empty when all agree.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "plan/op.h"

namespace onebit::test {

/// Unit roundoff of f32.
inline constexpr double kUnit = 0x1p-24;
/// What any result may be off by: gates of very negative numbers may be 0 or very small.
inline constexpr double kTiny = 1e-30;

/// What a result may differ by: class x sqrt(terms) x magnitude. The magnitude bounds the sum of the absolute terms,
/// e.g. |x| |w| for a dot product; without one the largest absolute value of the row is taken.
struct Bound {
  Tolerance tolerance = Tolerance::exact;
  double terms = 1;
  std::function<double(int64_t row, int64_t column)> magnitude = {};
  double least = 0;  // size that every row has at least: sums that cancel err by the size of their terms
};

/// Results of more rows than this may come from f16 products on devices that have them (Device::halves): each product
/// is off by up to 2^-11 and the sum over columns by less than that of |x| |w|.
inline constexpr int64_t kIntegerRows = 16;

inline double units(const Bound& bound, bool halves) {
  switch (bound.tolerance) {
    case Tolerance::exact:
      return 0;
    case Tolerance::integer:
      return halves ? 0x1p13 : 4 + 2 * std::sqrt(bound.terms);
    case Tolerance::rounding:
      return 16;
    case Tolerance::reduction:
      return 16 + 4 * std::sqrt(bound.terms);
  }
  return 0;
}

/// Of the absolute values; NaN is ignored.
inline float largest(std::span<const float> x) {
  float most = 0;
  for (const float value : x) most = std::max(most, std::fabs(value));
  return most;
}

/// Rows of `width` columns. `exact` compares bits (0 and -0 differ); by any other class a NaN agrees with nothing.
inline std::string compare(std::span<const float> expected, std::span<const float> actual, int64_t width,
                           const Bound& bound, bool halves = false) {
  if (expected.size() != actual.size()) return fmt::format("{} values, expected {}", actual.size(), expected.size());
  double row_size = 0;  // largest absolute value of the row
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / width, column = static_cast<int64_t>(i) % width;
    if (bound.tolerance == Tolerance::exact) {
      if (std::bit_cast<uint32_t>(expected[i]) == std::bit_cast<uint32_t>(actual[i])) continue;
      return fmt::format("[{}, {}] is {:.9g}, expected exactly {:.9g}", row, column, actual[i], expected[i]);
    }
    if (column == 0 && !bound.magnitude) {
      row_size = std::max<double>(bound.least, largest(expected.subspan(i, static_cast<size_t>(width))));
    }
    const double magnitude = bound.magnitude ? bound.magnitude(row, column) : row_size;
    const double allowed =
        units(bound, halves && static_cast<int64_t>(expected.size()) > kIntegerRows * width) * kUnit * magnitude +
        kTiny;
    const double error = std::fabs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (expected[i] == actual[i] || error <= allowed) continue;
    return fmt::format("[{}, {}] is {:.9g}, expected {:.9g}: error {:.3g}, allowed {:.3g}", row, column, actual[i],
                       expected[i], error, allowed);
  }
  return "";
}

inline std::string compare(std::span<const int32_t> expected, std::span<const int32_t> actual, int64_t width) {
  if (expected.size() != actual.size()) return fmt::format("{} values, expected {}", actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == actual[i]) continue;
    return fmt::format("[{}, {}] is {}, expected {}", static_cast<int64_t>(i) / width, static_cast<int64_t>(i) % width,
                       actual[i], expected[i]);
  }
  return "";
}

}  // namespace onebit::test
