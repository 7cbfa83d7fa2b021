// The meaning of block types on the device: 32 columns of a row of the file's bytes as integer codes with scales and
// minimums, w = scale * code - min. The same layouts as backend/ref/codes.cpp; read byte by byte, for kernels that are
// meant to be right for every type rather than fast.
#pragma once

#include "backend/gpu/runtime.h"
#include "gguf/types.h"

namespace onebit::gpu {

/// 32 columns; columns 0..15 use scale[0] and min[0], the others scale[1] and min[1].
struct Codes32 {
  int packed[8];  // int8 codes, four a word, in order
  float scale[2], min[2];

  __device__ void set(int i, int code) { reinterpret_cast<int8_t*>(packed)[i] = static_cast<int8_t>(code); }
  __device__ int code(int i) const { return reinterpret_cast<const int8_t*>(packed)[i]; }
  __device__ void scales(float s, float m = 0) {
    scale[0] = scale[1] = s;
    min[0] = min[1] = m;
  }
};

__device__ inline float half_at(const uint8_t* src) {
  __half_raw raw;
  raw.x = static_cast<unsigned short>(src[0] | src[1] << 8);
  return __half2float(__half(raw));
}

__device__ inline int nibble_at(const uint8_t* src, int j) { return j < 16 ? src[j] & 15 : src[j - 16] >> 4; }

__device__ inline int iq4_code(int i) {
  constexpr int8_t kCodes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return kCodes[i];
}
/// Twice the E2M1 value.
__device__ inline int mxfp4_code(int i) {
  constexpr int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  return kCodes[i];
}

/// Sub-block s of 8 of q4_k and q5_k: scale and minimum of 6 bits each.
__device__ inline void k_scale_min(const uint8_t* packed, int s, int& scale, int& min) {
  if (s < 4) {
    scale = packed[s] & 63;
    min = packed[s + 4] & 63;
  } else {
    scale = (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4;
    min = packed[s + 4] >> 4 | (packed[s] >> 6) << 4;
  }
}

/// Columns [32*g, 32*g + 32) of a row of a quantised type.
template <BlockType kType>
__device__ inline void read_codes32(const uint8_t* row, int64_t g, Codes32& to) {
  using enum BlockType;
  if constexpr (kType == q4_0) {
    const uint8_t* src = row + g * 18;
    to.scales(half_at(src));
    for (int j = 0; j < 32; ++j) to.set(j, nibble_at(src + 2, j) - 8);
  } else if constexpr (kType == q4_1) {
    const uint8_t* src = row + g * 20;
    to.scales(half_at(src), -half_at(src + 2));
    for (int j = 0; j < 32; ++j) to.set(j, nibble_at(src + 4, j));
  } else if constexpr (kType == q5_0 || kType == q5_1) {
    constexpr int kHead = kType == q5_0 ? 2 : 4;
    const uint8_t* src = row + g * (kHead + 20);
    to.scales(half_at(src), kType == q5_1 ? -half_at(src + 2) : 0.0f);
    for (int j = 0; j < 32; ++j) {
      const int high = src[kHead + j / 8] >> j % 8 & 1;
      to.set(j, (nibble_at(src + kHead + 4, j) | high << 4) - (kType == q5_0 ? 16 : 0));
    }
  } else if constexpr (kType == q8_0) {
    const uint8_t* src = row + g * 34;
    to.scales(half_at(src));
    for (int j = 0; j < 32; ++j) to.set(j, static_cast<int8_t>(src[2 + j]));
  } else if constexpr (kType == iq4_nl) {
    const uint8_t* src = row + g * 18;
    to.scales(half_at(src));
    for (int j = 0; j < 32; ++j) to.set(j, iq4_code(nibble_at(src + 2, j)));
  } else if constexpr (kType == mxfp4) {
    const uint8_t* src = row + g * 17;
    const uint32_t exponent = src[0];  // the scale is 2^(exponent - 128), subnormal for 0 and 1
    to.scales(__uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23));
    for (int j = 0; j < 32; ++j) to.set(j, mxfp4_code(nibble_at(src + 1, j)));
  } else {
    constexpr int kBytes = kType == q2_k   ? 84
                           : kType == q3_k ? 110
                           : kType == q4_k ? 144
                           : kType == q5_k ? 176
                           : kType == q6_k ? 210
                                           : 136;
    const uint8_t* src = row + g / 8 * kBytes;
    const int s = static_cast<int>(g % 8), half = s / 4, quarter = s % 4;
    if constexpr (kType == q2_k) {
      const float d = half_at(src + 80), dmin = half_at(src + 82);
      for (int k = 0; k < 2; ++k) {
        to.scale[k] = d * static_cast<float>(src[2 * s + k] & 15);
        to.min[k] = dmin * static_cast<float>(src[2 * s + k] >> 4);
      }
      for (int j = 0; j < 32; ++j) to.set(j, src[16 + half * 32 + j] >> 2 * quarter & 3);
    } else if constexpr (kType == q3_k) {
      const float d = half_at(src + 108);
      const uint8_t* packed = src + 96;
      for (int k = 0; k < 2; ++k) {
        const int group = 2 * s + k;
        const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
        const int high = packed[8 + group % 4] >> 2 * (group / 4) & 3;
        to.scale[k] = d * static_cast<float>((low | high << 4) - 32);
        to.min[k] = 0;
      }
      for (int j = 0; j < 32; ++j) {
        const int low = src[32 + half * 32 + j] >> 2 * quarter & 3, high = src[j] >> s & 1;
        to.set(j, low + 4 * high - 4);
      }
    } else if constexpr (kType == q4_k || kType == q5_k) {
      int scale, min;
      k_scale_min(src + 4, s, scale, min);
      to.scales(half_at(src) * static_cast<float>(scale), half_at(src + 2) * static_cast<float>(min));
      const uint8_t* nibbles = src + (kType == q4_k ? 16 : 48) + s / 2 * 32;
      for (int j = 0; j < 32; ++j) {
        const int high = kType == q5_k ? src[16 + j] >> s & 1 : 0;
        to.set(j, (nibbles[j] >> 4 * (s & 1) & 15) | high << 4);
      }
    } else if constexpr (kType == q6_k) {
      const float d = half_at(src + 208);
      for (int k = 0; k < 2; ++k) {
        to.scale[k] = d * static_cast<float>(static_cast<int8_t>(src[192 + 2 * s + k]));
        to.min[k] = 0;
      }
      for (int j = 0; j < 32; ++j) {
        const int low = src[64 * half + 32 * (quarter & 1) + j] >> 4 * (quarter / 2) & 15;
        const int high = src[128 + 32 * half + j] >> 2 * quarter & 3;
        to.set(j, (low | high << 4) - 32);
      }
    } else {
      static_assert(kType == iq4_xs);
      const int high = (src[2] | src[3] << 8) >> 2 * s & 3;
      const int scale = (src[4 + s / 2] >> 4 * (s & 1) & 15) | high << 4;
      to.scales(half_at(src) * static_cast<float>(scale - 32));
      for (int j = 0; j < 32; ++j) to.set(j, iq4_code(nibble_at(src + 8 + 16 * s, j)));
    }
  }
}

/// Types whose blocks have a minimum.
constexpr bool has_min(BlockType type) {
  using enum BlockType;
  return type == q4_1 || type == q5_1 || type == q2_k || type == q4_k || type == q5_k;
}
/// Types with a scale for every 16 columns.
constexpr bool by_16(BlockType type) {
  using enum BlockType;
  return type == q2_k || type == q3_k || type == q6_k;
}

/// Element i of a row of a float type.
template <BlockType kType>
__device__ inline float read_float(const uint8_t* row, int64_t i) {
  if constexpr (kType == BlockType::f32) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (kType == BlockType::f16) {
    return __half2float(reinterpret_cast<const __half*>(row)[i]);
  } else {
    static_assert(kType == BlockType::bf16);
    return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(row)[i]) << 16);
  }
}

/// Calls f.template operator()<type>() with the type as a constant; false for types that are not computed with.
template <class F>
bool with_quantised_type(BlockType type, F f) {
  using enum BlockType;
  switch (type) {
    case q4_0:
      f.template operator()<q4_0>();
      return true;
    case q4_1:
      f.template operator()<q4_1>();
      return true;
    case q5_0:
      f.template operator()<q5_0>();
      return true;
    case q5_1:
      f.template operator()<q5_1>();
      return true;
    case q8_0:
      f.template operator()<q8_0>();
      return true;
    case q2_k:
      f.template operator()<q2_k>();
      return true;
    case q3_k:
      f.template operator()<q3_k>();
      return true;
    case q4_k:
      f.template operator()<q4_k>();
      return true;
    case q5_k:
      f.template operator()<q5_k>();
      return true;
    case q6_k:
      f.template operator()<q6_k>();
      return true;
    case iq4_nl:
      f.template operator()<iq4_nl>();
      return true;
    case iq4_xs:
      f.template operator()<iq4_xs>();
      return true;
    case mxfp4:
      f.template operator()<mxfp4>();
      return true;
    default:
      return false;
  }
}
template <class F>
bool with_float_type(BlockType type, F f) {
  using enum BlockType;
  switch (type) {
    case f32:
      f.template operator()<f32>();
      return true;
    case f16:
      f.template operator()<f16>();
      return true;
    case bf16:
      f.template operator()<bf16>();
      return true;
    default:
      return false;
  }
}

}  // namespace onebit::gpu
