// Reads the integer form of each quantised block type. The bit layouts are those of gguf/blocks*.cpp; ref_test holds
// scale * code - min against decode_row.
#include "backend/ref/codes.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "gguf/k_scales.h"

namespace onebit::ref {
namespace {

/// Where one block's results go: codes [block elements], scale and min [block elements / group].
struct Slot {
  int8_t* codes;
  float* scale;
  float* min;
};

float half_at(const uint8_t* src) {
  uint16_t bits;
  std::memcpy(&bits, src, sizeof bits);
  return f16_to_f32(bits);
}

uint32_t u32_at(const uint8_t* src) {
  uint32_t bits;
  std::memcpy(&bits, src, sizeof bits);
  return bits;
}

/// Element j of 32: low nibbles first, then high nibbles.
int nibble(const uint8_t* src, int j) { return j < 16 ? src[j] & 15 : src[j - 16] >> 4; }

int8_t code(int value) { return static_cast<int8_t>(value); }

constexpr int8_t kIq4Codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/// Twice the E2M1 values; the scale below is halved.
constexpr int8_t kMxfp4Codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void read_q4_0(const uint8_t* src, Slot to) {
  to.scale[0] = half_at(src);
  for (int j = 0; j < 32; ++j) to.codes[j] = code(nibble(src + 2, j) - 8);
}

void read_q4_1(const uint8_t* src, Slot to) {
  to.scale[0] = half_at(src);
  to.min[0] = -half_at(src + 2);
  for (int j = 0; j < 32; ++j) to.codes[j] = code(nibble(src + 4, j));
}

void read_q5_0(const uint8_t* src, Slot to) {
  to.scale[0] = half_at(src);
  const uint32_t high = u32_at(src + 2);
  for (int j = 0; j < 32; ++j) to.codes[j] = code((nibble(src + 6, j) | static_cast<int>(high >> j & 1) << 4) - 16);
}

void read_q5_1(const uint8_t* src, Slot to) {
  to.scale[0] = half_at(src);
  to.min[0] = -half_at(src + 2);
  const uint32_t high = u32_at(src + 4);
  for (int j = 0; j < 32; ++j) to.codes[j] = code(nibble(src + 8, j) | static_cast<int>(high >> j & 1) << 4);
}

void read_q8_0(const uint8_t* src, Slot to) {
  to.scale[0] = half_at(src);
  std::memcpy(to.codes, src + 2, 32);
}

void read_iq4_nl(const uint8_t* src, Slot to) {
  to.scale[0] = half_at(src);
  for (int j = 0; j < 32; ++j) to.codes[j] = kIq4Codes[nibble(src + 2, j)];
}

void read_mxfp4(const uint8_t* src, Slot to) {
  const uint32_t exponent = src[0];  // the scale is 2^(exponent - 128), subnormal for 0 and 1
  to.scale[0] = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  for (int j = 0; j < 32; ++j) to.codes[j] = kMxfp4Codes[nibble(src + 1, j)];
}

void read_q2_k(const uint8_t* src, Slot to) {
  const float d = half_at(src + 80), dmin = half_at(src + 82);
  for (int g = 0; g < 16; ++g) {
    to.scale[g] = d * static_cast<float>(src[g] & 15);
    to.min[g] = dmin * static_cast<float>(src[g] >> 4);
  }
  for (int i = 0; i < 256; ++i) to.codes[i] = code(src[16 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3);
}

void read_q3_k(const uint8_t* src, Slot to) {
  const float d = half_at(src + 108);
  const uint8_t* packed = src + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int high = packed[8 + g % 4] >> 2 * (g / 4) & 3;
    to.scale[g] = d * static_cast<float>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int low = src[32 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
    const int high = src[i % 32] >> i / 32 & 1;
    to.codes[i] = code(low + 4 * high - 4);
  }
}

/// q4_k and q5_k; `high_bits` is null or 32 bytes whose bit s belongs to sub-block s.
void read_k_nibbles(const uint8_t* src, const uint8_t* nibbles, const uint8_t* high_bits, Slot to) {
  const float d = half_at(src), dmin = half_at(src + 2);
  for (int s = 0; s < 8; ++s) {
    const ScaleMin packed = unpack_scale_min(src + 4, s);
    to.scale[s] = d * static_cast<float>(packed.scale);
    to.min[s] = dmin * static_cast<float>(packed.min);
    for (int j = 0; j < 32; ++j) {
      const int low = nibbles[s / 2 * 32 + j] >> 4 * (s & 1) & 15;
      const int high = high_bits ? high_bits[j] >> s & 1 : 0;
      to.codes[32 * s + j] = code(low | high << 4);
    }
  }
}

void read_q4_k(const uint8_t* src, Slot to) { read_k_nibbles(src, src + 16, nullptr, to); }
void read_q5_k(const uint8_t* src, Slot to) { read_k_nibbles(src, src + 48, src + 16, to); }

void read_q6_k(const uint8_t* src, Slot to) {
  const float d = half_at(src + 208);
  for (int g = 0; g < 16; ++g) to.scale[g] = d * static_cast<float>(static_cast<int8_t>(src[192 + g]));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
    const int low = src[64 * half + 32 * (quarter & 1) + l] >> 4 * (quarter / 2) & 15;
    const int high = src[128 + 32 * half + l] >> 2 * quarter & 3;
    to.codes[i] = code((low | high << 4) - 32);
  }
}

void read_iq4_xs(const uint8_t* src, Slot to) {
  const float d = half_at(src);
  const int high = src[2] | src[3] << 8;
  for (int s = 0; s < 8; ++s) {
    const int scale = (src[4 + s / 2] >> 4 * (s & 1) & 15) | (high >> 2 * s & 3) << 4;
    to.scale[s] = d * static_cast<float>(scale - 32);
    for (int j = 0; j < 32; ++j) to.codes[32 * s + j] = kIq4Codes[nibble(src + 8 + 16 * s, j)];
  }
}

struct Reader {
  void (*read)(const uint8_t* src, Slot to);
  int64_t group;
  bool has_min;
};

Reader reader(BlockType type) {
  switch (type) {
    case BlockType::q4_0:
      return {read_q4_0, 32, false};
    case BlockType::q4_1:
      return {read_q4_1, 32, true};
    case BlockType::q5_0:
      return {read_q5_0, 32, false};
    case BlockType::q5_1:
      return {read_q5_1, 32, true};
    case BlockType::q8_0:
      return {read_q8_0, 32, false};
    case BlockType::q2_k:
      return {read_q2_k, 16, true};
    case BlockType::q3_k:
      return {read_q3_k, 16, false};
    case BlockType::q4_k:
      return {read_q4_k, 32, true};
    case BlockType::q5_k:
      return {read_q5_k, 32, true};
    case BlockType::q6_k:
      return {read_q6_k, 16, false};
    case BlockType::iq4_nl:
      return {read_iq4_nl, 32, false};
    case BlockType::iq4_xs:
      return {read_iq4_xs, 32, false};
    case BlockType::mxfp4:
      return {read_mxfp4, 32, false};
    default:
      return {nullptr, 0, false};
  }
}

}  // namespace

bool has_codes(BlockType type) { return reader(type).read != nullptr; }

void read_codes(BlockType type, const uint8_t* src, int64_t n, CodedRow& row) {
  const Reader how = reader(type);
  CHECK(how.read);
  const TypeInfo& info = type_info(type);
  CHECK(n % info.block_elems == 0);
  row.group = how.group;
  row.codes.resize(static_cast<size_t>(n));
  row.scale.resize(static_cast<size_t>(n / how.group));
  row.min.resize(how.has_min ? row.scale.size() : 0);
  for (int64_t i = 0; i < n; i += info.block_elems, src += info.block_bytes) {
    how.read(src, {row.codes.data() + i, row.scale.data() + i / how.group,
                   row.min.data() + (how.has_min ? i / how.group : 0)});
  }
}

}  // namespace onebit::ref
