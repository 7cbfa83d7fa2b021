// Float types and the formats with blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
// Nibble order of all 32-element formats: byte j holds element j in its low half and element j + 16 in its high half.
#include <bit>
#include <cmath>

#include "gguf/block_codecs.h"

namespace onebit::codec {
namespace {

// Codes of IQ4_NL and IQ4_XS.
constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Codes of MXFP4, twice the E2M1 value.
constexpr float kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};

/// 2^(exponent - 128): half of an E8M0 scale, because kMxfp4Values are doubled. Exponents 0 and 1 are subnormal floats.
float half_e8m0(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : static_cast<uint32_t>(exponent - 1) << 23;
  return std::bit_cast<float>(bits);
}

uint32_t load_u32(const uint8_t* src) {
  uint32_t bits;
  std::memcpy(&bits, src, sizeof bits);
  return bits;
}

void decode_codebook(const uint8_t* nibbles, float scale, const float* values, float* dst) {
  for (int j = 0; j < 16; ++j) {
    dst[j] = scale * values[nibbles[j] & 15];
    dst[j + 16] = scale * values[nibbles[j] >> 4];
  }
}

/// The element of largest magnitude with its sign, the first one on ties.
float signed_extreme(const float* x) {
  float amax = 0, extreme = 0;
  for (int j = 0; j < 32; ++j) {
    if (std::fabs(x[j]) > amax) {
      amax = std::fabs(x[j]);
      extreme = x[j];
    }
  }
  return extreme;
}

void pack_nibbles(const int* codes, uint8_t* dst) {
  for (int j = 0; j < 16; ++j) dst[j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
}

}  // namespace

// --- floats ---------------------------------------------------------------------------------------------------------

void decode_f32(const uint8_t* src, float* dst, int64_t n) { std::memcpy(dst, src, static_cast<size_t>(n) * 4); }
void encode_f32(const float* src, uint8_t* dst, int64_t n) { std::memcpy(dst, src, static_cast<size_t>(n) * 4); }

void decode_f16(const uint8_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = load_half(src + 2 * i);
}

void encode_f16(const float* src, uint8_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_half(dst + 2 * i, src[i]);
}

void decode_bf16(const uint8_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, sizeof bits);
    dst[i] = bf16_to_f32(bits);
  }
}

void encode_bf16(const float* src, uint8_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = f32_to_bf16(src[i]);
    std::memcpy(dst + 2 * i, &bits, sizeof bits);
  }
}

// --- Q4_0: f16 d, 16 bytes of nibbles; y = (q - 8) d -----------------------------------------------------------------

void decode_q4_0(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 18, dst += 32) {
    const float d = load_half(src);
    for (int j = 0; j < 16; ++j) {
      dst[j] = static_cast<float>((src[2 + j] & 15) - 8) * d;
      dst[j + 16] = static_cast<float>((src[2 + j] >> 4) - 8) * d;
    }
  }
}

void encode_q4_0(const float* src, uint8_t* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 32, dst += 18) {
    const float d = signed_extreme(src) / -8;
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    int codes[32];
    for (int j = 0; j < 32; ++j) codes[j] = clamp_to_int(src[j] * inverse + 8.5f, 0, 15);
    store_half(dst, d);
    pack_nibbles(codes, dst + 2);
  }
}

// --- Q4_1: f16 d, f16 m, 16 bytes of nibbles; y = q d + m ------------------------------------------------------------

void decode_q4_1(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 20, dst += 32) {
    const float d = load_half(src), m = load_half(src + 2);
    for (int j = 0; j < 16; ++j) {
      dst[j] = static_cast<float>(src[4 + j] & 15) * d + m;
      dst[j + 16] = static_cast<float>(src[4 + j] >> 4) * d + m;
    }
  }
}

void encode_q4_1(const float* src, uint8_t* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 32, dst += 20) {
    float low = src[0], high = src[0];
    for (int j = 1; j < 32; ++j) {
      low = std::fmin(low, src[j]);
      high = std::fmax(high, src[j]);
    }
    const float d = (high - low) / 15;
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    int codes[32];
    for (int j = 0; j < 32; ++j) codes[j] = clamp_to_int((src[j] - low) * inverse + 0.5f, 0, 15);
    store_half(dst, d);
    store_half(dst + 2, low);
    pack_nibbles(codes, dst + 4);
  }
}

// --- Q5_0, Q5_1: as the above with a fifth bit per element in a u32
// ---------------------------------------------------

void decode_q5_0(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 22, dst += 32) {
    const float d = load_half(src);
    const uint32_t high = load_u32(src + 2);
    for (int j = 0; j < 16; ++j) {
      const uint32_t q0 = (src[6 + j] & 15u) | (high >> j & 1u) << 4;
      const uint32_t q1 = src[6 + j] >> 4 | (high >> (j + 16) & 1u) << 4;
      dst[j] = static_cast<float>(static_cast<int>(q0) - 16) * d;
      dst[j + 16] = static_cast<float>(static_cast<int>(q1) - 16) * d;
    }
  }
}

void decode_q5_1(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 24, dst += 32) {
    const float d = load_half(src), m = load_half(src + 2);
    const uint32_t high = load_u32(src + 4);
    for (int j = 0; j < 16; ++j) {
      const uint32_t q0 = (src[8 + j] & 15u) | (high >> j & 1u) << 4;
      const uint32_t q1 = src[8 + j] >> 4 | (high >> (j + 16) & 1u) << 4;
      dst[j] = static_cast<float>(q0) * d + m;
      dst[j + 16] = static_cast<float>(q1) * d + m;
    }
  }
}

// --- Q8_0: f16 d, 32 int8; y = q d -----------------------------------------------------------------------------------

void decode_q8_0(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 34, dst += 32) {
    const float d = load_half(src);
    for (int j = 0; j < 32; ++j) dst[j] = static_cast<float>(static_cast<int8_t>(src[2 + j])) * d;
  }
}

void encode_q8_0(const float* src, uint8_t* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 32, dst += 34) {
    const float d = std::fabs(signed_extreme(src)) / 127;
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    store_half(dst, d);
    for (int j = 0; j < 32; ++j) {
      dst[2 + j] = static_cast<uint8_t>(static_cast<int8_t>(round_to_int(src[j] * inverse, -128, 127)));
    }
  }
}

// --- IQ4_NL, IQ4_XS, MXFP4: nibbles into a table ---------------------------------------------------------------------

void decode_iq4_nl(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 18, dst += 32) {
    decode_codebook(src + 2, load_half(src), kIq4Values, dst);
  }
}

// 256 elements: f16 d, u16 high scale bits, 4 bytes low scale bits, 8 sub-blocks of 16 bytes; y = d (scale - 32) T[q].
void decode_iq4_xs(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 136) {
    const float d = load_half(src);
    const int high = src[2] | src[3] << 8;
    for (int s = 0; s < 8; ++s, dst += 32) {
      const int scale = (src[4 + s / 2] >> 4 * (s & 1) & 15) | (high >> 2 * s & 3) << 4;
      decode_codebook(src + 8 + 16 * s, d * static_cast<float>(scale - 32), kIq4Values, dst);
    }
  }
}

void decode_mxfp4(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 17, dst += 32) {
    decode_codebook(src + 1, half_e8m0(src[0]), kMxfp4Values, dst);
  }
}

}  // namespace onebit::codec
