// How codes lie in the bytes of a block. Codes of 32 elements come as integers, those of the super-blocks of 256 as
// floats that hold small integers, in the order of the elements.
#pragma once

#include <cstdint>
#include <cstring>

namespace onebit {

/// Codes 0..15 of 32 elements into [16].
inline void pack_nibbles(const int* codes, uint8_t* quants) {
  for (int j = 0; j < 16; ++j) quants[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

/// Codes 0..31 of 32 elements into [4 + 16]: the fifth bits as a u32, then nibbles.
inline void pack_five_bits(const int* codes, uint8_t* bytes) {
  uint32_t high = 0;
  for (int j = 0; j < 32; ++j) high |= static_cast<uint32_t>(codes[j] >> 4) << j;
  std::memcpy(bytes, &high, sizeof high);
  pack_nibbles(codes, bytes + 4);
}

/// 32 bytes for each pair of sub-blocks: the first of them in the low halves. Codes 0..15 into [128].
inline void pack_q4_k(const float* codes, uint8_t* quants) {
  for (int p = 0; p < 4; ++p, codes += 64, quants += 32) {
    for (int i = 0; i < 32; ++i) {
      quants[i] = static_cast<uint8_t>(static_cast<int>(codes[i]) | static_cast<int>(codes[i + 32]) << 4);
    }
  }
}

/// As Q4_K with the fifth bit of sub-block s in bit s of `high`. Codes 0..31 into [32] and [128].
inline void pack_q5_k(const float* codes, uint8_t* high, uint8_t* quants) {
  for (int i = 0; i < 32; ++i) {
    int bits = 0;
    for (int s = 0; s < 8; ++s) bits |= static_cast<int>(codes[32 * s + i]) >> 4 << s;
    high[i] = static_cast<uint8_t>(bits);
  }
  for (int p = 0; p < 4; ++p, codes += 64, quants += 32) {
    for (int i = 0; i < 32; ++i) {
      quants[i] = static_cast<uint8_t>((static_cast<int>(codes[i]) & 15) | (static_cast<int>(codes[i + 32]) & 15) << 4);
    }
  }
}

/// Of each half of 128 elements: quarters 0 and 2, 1 and 3 share bytes of `low`, all four those of `high`. Codes
/// -32..31 into [128] and [64].
inline void pack_q6_k(const float* codes, uint8_t* low, uint8_t* high) {
  for (int half = 0; half < 2; ++half, codes += 128, low += 64, high += 32) {
    for (int l = 0; l < 32; ++l) {
      int q[4];
      for (int quarter = 0; quarter < 4; ++quarter) q[quarter] = static_cast<int>(codes[32 * quarter + l]) + 32;
      low[l] = static_cast<uint8_t>((q[0] & 15) | (q[2] & 15) << 4);
      low[l + 32] = static_cast<uint8_t>((q[1] & 15) | (q[3] & 15) << 4);
      high[l] = static_cast<uint8_t>(q[0] >> 4 | q[1] >> 4 << 2 | q[2] >> 4 << 4 | q[3] >> 4 << 6);
    }
  }
}

}  // namespace onebit
