// Decoding of the formats with super-blocks of 256: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K. Encoding is in blocks_k_encode.cpp.
#include "gguf/block_codecs.h"
#include "gguf/k_scales.h"

namespace onebit::codec {
namespace {

/// The sixteen 6-bit scales of Q3_K, minus 32, from their 12 bytes.
void unpack_q3_scales(const uint8_t* packed, int* scales) {
  for (int i = 0; i < 8; ++i) {
    scales[i] = packed[i] & 15;
    scales[i + 8] = packed[i] >> 4;
  }
  for (int i = 0; i < 16; ++i) scales[i] = (scales[i] | (packed[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32;
}

}  // namespace

// u8 scales[16] (low nibble scale, high nibble minimum), u8 qs[64], f16 d, f16 dmin; y = d sc q - dmin m.
// A half of 128 elements takes 32 bytes of qs; its quarter j is at bit 2j of each.
void decode_q2_k(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 84, dst += 256) {
    const float d = load_half(src + 80), dmin = load_half(src + 82);
    for (int i = 0; i < 256; ++i) {
      const int scale = src[i / 16];
      const int q = src[16 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
      dst[i] = d * static_cast<float>(scale & 15) * static_cast<float>(q) - dmin * static_cast<float>(scale >> 4);
    }
  }
}

// u8 hmask[32], u8 qs[64], u8 scales[12], f16 d; y = d (sc - 32) (q - 4), bit 2 of q from hmask.
void decode_q3_k(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 110, dst += 256) {
    const float d = load_half(src + 108);
    int scales[16];
    unpack_q3_scales(src + 96, scales);
    for (int i = 0; i < 256; ++i) {
      const int low = src[32 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
      const int high = src[i % 32] >> i / 32 & 1;
      dst[i] = d * static_cast<float>(scales[i / 16]) * static_cast<float>(low + 4 * high - 4);
    }
  }
}

// f16 d, f16 dmin, u8 scales[12], u8 qs[128]; 8 sub-blocks of 32; y = d sc q - dmin m.
// 32 bytes of qs hold a pair of sub-blocks, the first in the low nibbles.
void decode_q4_k(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 144) {
    const float d = load_half(src), dmin = load_half(src + 2);
    for (int s = 0; s < 8; ++s, dst += 32) {
      const ScaleMin sm = unpack_scale_min(src + 4, s);
      const float scale = d * static_cast<float>(sm.scale), offset = dmin * static_cast<float>(sm.min);
      const uint8_t* qs = src + 16 + s / 2 * 32;
      for (int j = 0; j < 32; ++j) dst[j] = scale * static_cast<float>(qs[j] >> 4 * (s & 1) & 15) - offset;
    }
  }
}

// As Q4_K with u8 qh[32] before qs: bit s of qh[j] is the fifth bit of element j of sub-block s.
void decode_q5_k(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 176) {
    const float d = load_half(src), dmin = load_half(src + 2);
    for (int s = 0; s < 8; ++s, dst += 32) {
      const ScaleMin sm = unpack_scale_min(src + 4, s);
      const float scale = d * static_cast<float>(sm.scale), offset = dmin * static_cast<float>(sm.min);
      const uint8_t* qs = src + 48 + s / 2 * 32;
      for (int j = 0; j < 32; ++j) {
        const int q = (qs[j] >> 4 * (s & 1) & 15) | (src[16 + j] >> s & 1) << 4;
        dst[j] = scale * static_cast<float>(q) - offset;
      }
    }
  }
}

// u8 ql[128], u8 qh[64], i8 scales[16], f16 d; 16 sub-blocks of 16; y = d sc (q - 32).
// Per half: quarter k takes ql[32 (k & 1) + l], nibble k / 2, and bits 2k of qh[l].
void decode_q6_k(const uint8_t* src, float* dst, int64_t n_blocks) {
  for (int64_t b = 0; b < n_blocks; ++b, src += 210, dst += 256) {
    const float d = load_half(src + 208);
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
      const int low = src[64 * half + 32 * (quarter & 1) + l] >> 4 * (quarter / 2) & 15;
      const int high = src[128 + 32 * half + l] >> 2 * quarter & 3;
      const int scale = static_cast<int8_t>(src[192 + i / 16]);
      dst[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
    }
  }
}

}  // namespace onebit::codec
