// The codecs behind blocks.h, one pair of functions per block type, for blocks.cpp's dispatch only.
// Each takes whole blocks: n_blocks of them, packed one after another.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/half.h"

namespace onebit::codec {

/// A little-endian f16 at any alignment, widened.
inline float load_half(const uint8_t* src) {
  uint16_t bits;
  std::memcpy(&bits, src, sizeof bits);
  return f16_to_f32(bits);
}

inline void store_half(uint8_t* dst, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(dst, &bits, sizeof bits);
}

/// Truncates to an integer in [low, high]; NaN gives low. Never out of the range of the conversion.
inline int clamp_to_int(float value, int low, int high) {
  if (!(value > static_cast<float>(low))) return low;
  return value < static_cast<float>(high) ? static_cast<int>(value) : high;
}

/// Nearest integer, halves away from zero, in [low, high]; exact also just below a half, where adding 0.5 would round
/// up.
inline int round_to_int(float value, int low, int high) {
  const int whole = clamp_to_int(value, low, high);
  const float rest = value - static_cast<float>(whole);
  if (rest >= 0.5f && whole < high) return whole + 1;
  if (rest <= -0.5f && whole > low) return whole - 1;
  return whole;
}

using Decode = void(const uint8_t* src, float* dst, int64_t n_blocks);
using Encode = void(const float* src, uint8_t* dst, int64_t n_blocks);

Decode decode_f32, decode_f16, decode_bf16;
Decode decode_q4_0, decode_q4_1, decode_q5_0, decode_q5_1, decode_q8_0, decode_iq4_nl, decode_mxfp4;
Decode decode_q2_k, decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k, decode_iq4_xs;
Encode encode_f32, encode_f16, encode_bf16;
Encode encode_q4_0, encode_q4_1, encode_q5_0, encode_q5_1, encode_q8_0;
Encode encode_q4_k, encode_q5_k, encode_q6_k;

/// With weights [n] of the squared errors; null: all alike.
using EncodeSearch = void(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks);
EncodeSearch encode_q4_0_search, encode_q4_1_search, encode_q5_0_search, encode_q5_1_search;
EncodeSearch encode_q4_k_search, encode_q5_k_search, encode_q6_k_search;
/// The same bytes, many blocks at once.
EncodeSearch encode_q4_0_lanes, encode_q4_1_lanes, encode_q5_0_lanes, encode_q5_1_lanes;
EncodeSearch encode_q4_k_lanes, encode_q5_k_lanes, encode_q6_k_lanes;

}  // namespace onebit::codec
