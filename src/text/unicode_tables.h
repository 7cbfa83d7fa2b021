// Layout of the generated Unicode data (unicode_tables.cpp); only unicode.cpp reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace onebit::unicode_tables {

inline constexpr size_t kRunsSize = 4283;
inline constexpr size_t kPagesSize = 4352;
inline constexpr size_t kCombiningSize = 814;
inline constexpr size_t kDecompositionsSize = 2060;
inline constexpr size_t kCompositionsSize = 940;

/// Runs of code points with the same properties, ascending: first code point << 8 | properties. Properties: bits 0-4
/// the category (index into "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs
/// Co"), bit 5 white space, bit 6 may change under NFC, bit 7 has a combining class.
extern const std::array<uint32_t, kRunsSize> kRuns;
/// For each page of 256 code points: the run that holds its first one.
extern const std::array<uint16_t, kPagesSize> kPages;
/// Code point << 8 | combining class, ascending; all others have class 0.
extern const std::array<uint32_t, kCombiningSize> kCombining;
/// Code point << 42 | first part << 21 | second part (0: none), ascending. One step; Hangul is computed.
extern const std::array<uint64_t, kDecompositionsSize> kDecompositions;
/// Indices of the decompositions that NFC composes again, ascending by (first part, second part).
extern const std::array<uint16_t, kCompositionsSize> kCompositions;

}  // namespace onebit::unicode_tables
