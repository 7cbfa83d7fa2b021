// The 12 bytes that hold eight 6-bit scales and eight 6-bit minimums in Q4_K and Q5_K blocks.
#pragma once

#include <cstdint>

namespace onebit {

struct ScaleMin {
  int scale, min;  ///< 0..63
};

/// Sub-block s of 8. The first four lie in the low 6 bits of bytes 0..3 (scales) and 4..7 (minimums); the last four
/// have their low 4 bits in bytes 8..11 and their high 2 bits above those of the first four.
inline ScaleMin unpack_scale_min(const uint8_t* packed, int s) {
  if (s < 4) return {packed[s] & 63, packed[s + 4] & 63};
  return {(packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4, packed[s + 4] >> 4 | (packed[s] >> 6) << 4};
}

/// Inverse of unpack_scale_min for all eight sub-blocks.
inline void pack_scale_mins(const ScaleMin* values, uint8_t* packed) {
  for (int s = 0; s < 4; ++s) {
    const ScaleMin low = values[s], high = values[s + 4];
    packed[s] = static_cast<uint8_t>(low.scale | high.scale >> 4 << 6);
    packed[s + 4] = static_cast<uint8_t>(low.min | high.min >> 4 << 6);
    packed[s + 8] = static_cast<uint8_t>((high.scale & 15) | (high.min & 15) << 4);
  }
}

}  // namespace onebit
