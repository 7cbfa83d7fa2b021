// Float types and the formats with blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
// Nibble order of all 32-element formats: byte j holds element j in its low half and element j + 16 in its high half.
#include <bit>
#include <cmath>

#include "gguf/block_codecs.h"
#include "gguf/packing.h"

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

/// Codes 0 .. 2 half - 1 of y = (q - half) d with the extreme at 0, and d.
float plain_symmetric(const float* x, int half, int* codes) {
  const float d = signed_extreme(x) / static_cast<float>(-half);
  const float inverse = d != 0 ? 1.0f / d : 0.0f;
  const float shift = static_cast<float>(half) + 0.5f;
  for (int j = 0; j < 32; ++j) codes[j] = clamp_to_int(x[j] * inverse + shift, 0, 2 * half - 1);
  return d;
}

struct ScaleMinimum {
  float d, m;
};

/// Codes 0..high of y = q d + m that span the block.
ScaleMinimum plain_affine(const float* x, int high, int* codes) {
  float low = x[0], top = x[0];
  for (int j = 1; j < 32; ++j) {
    low = std::fmin(low, x[j]);
    top = std::fmax(top, x[j]);
  }
  const float d = (top - low) / static_cast<float>(high);
  const float inverse = d != 0 ? 1.0f / d : 0.0f;
  for (int j = 0; j < 32; ++j) codes[j] = clamp_to_int((x[j] - low) * inverse + 0.5f, 0, high);
  return {d, low};
}

void store_scale_min(uint8_t* dst, const ScaleMinimum& values) {
  store_half(dst, values.d);
  store_half(dst + 2, values.m);
}

}  // namespace

// --- floats ---------------------------------------------------------------------------------------------------------

void decode_f32(const uint8_t* src, float* dst, int64_t n) { std::memcpy(dst, src, static_cast<size_t>(n) * 4); }
void encode_f32(const float* src, uint8_t* dst, int64_t n) { std::memcpy(dst, src, static_cast<size_t>(n) * 4); }

/// As f16_to_f32, without branches so that the loop becomes vectors: the exponents are moved by a multiplication, which
/// also makes subnormals right.
void decode_f16(const uint8_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, sizeof bits);
    const uint32_t magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    dst[i] = std::bit_cast<float>((magnitude < 0x0f800000u ? finite : magnitude | 0x7f800000u) | sign);
  }
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
    int codes[32];
    store_half(dst, plain_symmetric(src, 8, codes));
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
    int codes[32];
    store_scale_min(dst, plain_affine(src, 15, codes));
    pack_nibbles(codes, dst + 4);
  }
}

// --- Q5_0, Q5_1: as the above with a fifth bit per element in a u32 --------------------------------------------------

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

void encode_q5_0(const float* src, uint8_t* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 32, dst += 22) {
    int codes[32];
    store_half(dst, plain_symmetric(src, 16, codes));
    pack_five_bits(codes, dst + 2);
  }
}

void encode_q5_1(const float* src, uint8_t* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 32, dst += 24) {
    int codes[32];
    store_scale_min(dst, plain_affine(src, 31, codes));
    pack_five_bits(codes, dst + 4);
  }
}

// --- Q8_0: f16 d, 32 int8; y = q d -----------------------------------------------------------------------------------

void decode_q8_0(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 34, dst += 32) {
    const float d = load_half(src);
    for (int j = 0; j < 32; ++j) dst[j] = static_cast<float>(static_cast<int8_t>(src[2 + j])) * d;
  }
}

/// Largest magnitude of 32 elements; eight at a time, so that it becomes vectors.
static float largest_of(const float* x) {
  float lane[8] = {};
  for (int j = 0; j < 32; j += 8) {
    for (int l = 0; l < 8; ++l) lane[l] = std::fabs(x[j + l]) > lane[l] ? std::fabs(x[j + l]) : lane[l];
  }
  float largest = 0;
  for (const float value : lane) largest = value > largest ? value : largest;
  return largest;
}

void encode_q8_0(const float* src, uint8_t* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 32, dst += 34) {
    const float d = largest_of(src) / 127;
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    store_half(dst, d);
    int8_t codes[32];
    for (int j = 0; j < 32; ++j) {  // round_to_int without branches
      float value = src[j] * inverse;
      value = value > -128 ? value : -128.0f;
      value = value < 127 ? value : 127.0f;
      const int whole = static_cast<int>(value);
      const float rest = value - static_cast<float>(whole);
      codes[j] = static_cast<int8_t>(whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0));
    }
    std::memcpy(dst + 2, codes, sizeof codes);
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
