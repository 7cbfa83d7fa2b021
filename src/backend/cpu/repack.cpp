// Every block type is read into the same small integers, row by row, and written as planes. Two types take a shortcut:
// q4_0 and q8_0 blocks only need their bytes interleaved, at memory speed.
#include "backend/cpu/repack.h"

#include <cstring>

#include "base/error.h"
#include "gguf/k_scales.h"

namespace onebit::cpu {
namespace {

/// One row's part of a group of blocks: 8 blocks behind one head, or one block.
struct RawGroup {
  uint8_t head[4];       // d, dmin as f16
  uint8_t own[8][4];     // the block's own scales: f16 scale (and min), or bytes
  uint8_t codes[8][32];  // unsigned, without bias
};

/// What a packed form holds. A block is [own scales][high plane][low plane].
struct Planes {
  int low_bits, high_bits;
  int own_planes, own_bytes;  // arrays of 16 elements of 1 or 2 bytes
  int head_planes;            // arrays of 16 f16
};

constexpr Planes kPlanes[kStripForms] = {
    {4, 0, 1, 2, 0},  // q4_0
    {4, 0, 2, 2, 0},  // q4_1
    {4, 1, 1, 2, 0},  // q5_0
    {4, 1, 2, 2, 0},  // q5_1
    {8, 0, 1, 2, 0},  // q8_0
    {2, 0, 2, 1, 2},  // q2_k
    {2, 1, 2, 1, 1},  // q3_k
    {4, 0, 2, 1, 2},  // q4_k
    {4, 1, 2, 1, 2},  // q5_k
    {4, 2, 2, 1, 1},  // q6_k
    {4, 0, 1, 2, 0},  // iq4_nl
    {4, 0, 1, 1, 1},  // iq4_xs
    {4, 0, 1, 1, 0},  // mxfp4
};

uint8_t byte(int x) { return static_cast<uint8_t>(x); }

/// 16 bytes of nibbles: low ones are elements 0..15, high ones 16..31.
void read_nibbles(const uint8_t* src, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = src[i] & 15;
    codes[16 + i] = src[i] >> 4;
  }
}

/// The fifth bits of 32 elements.
void add_fifth_bits(const uint8_t* src, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= byte((src[i / 8] >> i % 8 & 1) << 4);
}

// Readers of one group of one row; the layouts are those of gguf/blocks*.cpp.
void read_q4_1(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.own[0], src, 4);
  read_nibbles(src + 4, to.codes[0]);
}
void read_q5_0(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.own[0], src, 2);
  read_nibbles(src + 6, to.codes[0]);
  add_fifth_bits(src + 2, to.codes[0]);
}
void read_q5_1(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.own[0], src, 4);
  read_nibbles(src + 8, to.codes[0]);
  add_fifth_bits(src + 4, to.codes[0]);
}
void read_iq4_nl(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.own[0], src, 2);
  read_nibbles(src + 2, to.codes[0]);
}
void read_mxfp4(const uint8_t* src, RawGroup& to) {
  to.own[0][0] = src[0];
  read_nibbles(src + 1, to.codes[0]);
}
/// Two bits of 256 elements: bits 2j, 2j+1 of bytes 32n..32n+31 are block 4n+j.
void read_pairs(const uint8_t* src, RawGroup& to) {
  for (int b = 0; b < 8; ++b) {
    for (int i = 0; i < 32; ++i) to.codes[b][i] = src[32 * (b / 4) + i] >> 2 * (b % 4) & 3;
  }
}
void read_q2_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src + 80, 4);
  for (int b = 0; b < 8; ++b) std::memcpy(to.own[b], src + 2 * b, 2);
  read_pairs(src + 16, to);
}
void read_q3_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src + 108, 2);
  const uint8_t* packed = src + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int high = packed[8 + g % 4] >> 2 * (g / 4) & 3;
    to.own[g / 2][g % 2] = byte((low | high << 4) - 32);
  }
  read_pairs(src + 32, to);
  for (int b = 0; b < 8; ++b) {
    for (int i = 0; i < 32; ++i) to.codes[b][i] |= byte((src[i] >> b & 1) << 2);
  }
}
/// q4_k and q5_k; bit b of high_bits[i] belongs to element i of block b.
void read_k_nibbles(const uint8_t* src, const uint8_t* nibbles, const uint8_t* high_bits, RawGroup& to) {
  std::memcpy(to.head, src, 4);
  for (int b = 0; b < 8; ++b) {
    const ScaleMin packed = unpack_scale_min(src + 4, b);
    to.own[b][0] = byte(packed.scale);
    to.own[b][1] = byte(packed.min);
    for (int i = 0; i < 32; ++i) to.codes[b][i] = nibbles[32 * (b / 2) + i] >> 4 * (b % 2) & 15;
    if (!high_bits) continue;
    for (int i = 0; i < 32; ++i) to.codes[b][i] |= byte((high_bits[i] >> b & 1) << 4);
  }
}
void read_q4_k(const uint8_t* src, RawGroup& to) { read_k_nibbles(src, src + 16, nullptr, to); }
void read_q5_k(const uint8_t* src, RawGroup& to) { read_k_nibbles(src, src + 48, src + 16, to); }
void read_q6_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src + 208, 2);
  for (int b = 0; b < 8; ++b) {
    std::memcpy(to.own[b], src + 192 + 2 * b, 2);
    const int half = b / 4, quarter = b % 4;
    const uint8_t *low = src + 64 * half + 32 * (quarter & 1), *high = src + 128 + 32 * half;
    for (int i = 0; i < 32; ++i) {
      to.codes[b][i] = byte((low[i] >> 4 * (quarter / 2) & 15) | (high[i] >> 2 * quarter & 3) << 4);
    }
  }
}
void read_iq4_xs(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 2);
  const int high = src[2] | src[3] << 8;
  for (int b = 0; b < 8; ++b) {
    const int low = src[4 + b / 2] >> 4 * (b & 1) & 15;
    to.own[b][0] = byte((low | (high >> 2 * b & 3) << 4) - 32);
    read_nibbles(src + 8 + 16 * b, to.codes[b]);
  }
}

using Reader = void (*)(const uint8_t* src, RawGroup& to);

Reader reader_of(Strip form) {
  constexpr Reader kReaders[kStripForms] = {nullptr,     read_q4_1,   read_q5_0, read_q5_1, nullptr,
                                            read_q2_k,   read_q3_k,   read_q4_k, read_q5_k, read_q6_k,
                                            read_iq4_nl, read_iq4_xs, read_mxfp4};
  return kReaders[static_cast<int>(form)];
}

/// Puts n_vec vectors' bytes of one row (4 each) into a plane.
void put_row(const uint8_t* bytes, int n_vec, int r, uint8_t* plane) {
  for (int p = 0; p < n_vec; ++p) std::memcpy(plane + 64 * p + 4 * r, bytes + 4 * p, 4);
}

/// Four codes, one a byte.
uint32_t four_codes(const uint8_t* codes) {
  uint32_t four;
  std::memcpy(&four, codes, 4);
  return four;
}

/// Bits `from`, from+1 of 32 codes -> the 2-bit plane.
void put_bit_pairs(const uint8_t* codes, int from, int r, uint8_t* plane) {
  uint32_t words[2] = {};
  for (int j = 0; j < 8; ++j) words[j / 4] |= (four_codes(codes + 4 * j) >> from & 0x03030303u) << 2 * (j % 4);
  uint8_t bytes[8];
  std::memcpy(bytes, words, 8);
  put_row(bytes, 2, r, plane);
}

void put_nibbles(const uint8_t* codes, int r, uint8_t* plane) {
  uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = byte((codes[i] & 15) | codes[16 + i] << 4);
  put_row(bytes, 4, r, plane);
}

/// Bit `from` of 32 codes -> the 1-bit plane.
void put_single_bits(const uint8_t* codes, int from, int r, uint8_t* plane) {
  uint32_t word = 0;
  for (int j = 0; j < 8; ++j) word |= (four_codes(codes + 4 * j) >> from & 0x01010101u) << j;
  uint8_t bytes[4];
  std::memcpy(bytes, &word, 4);
  put_row(bytes, 1, r, plane);
}

/// Writes one row's group into its lanes of a strip.
void put_group(const RawGroup& group, const Planes& planes, const StripShape& shape, int r, uint8_t* strip) {
  for (int p = 0; p < planes.head_planes; ++p) std::memcpy(strip + kHalfBytes * p + 2 * r, group.head + 2 * p, 2);
  uint8_t* block = strip + shape.head_bytes;
  for (int b = 0; b < shape.group_blocks; ++b, block += shape.block_bytes) {
    const int own_bytes = planes.own_bytes, plane_bytes = kLanes * own_bytes;
    for (int p = 0; p < planes.own_planes; ++p) {
      std::memcpy(block + plane_bytes * p + own_bytes * r, group.own[b] + own_bytes * p,
                  static_cast<size_t>(own_bytes));
    }
    uint8_t* high = block + plane_bytes * planes.own_planes;
    uint8_t* low = high + 64 * planes.high_bits;
    const uint8_t* codes = group.codes[b];
    if (planes.high_bits == 1) put_single_bits(codes, planes.low_bits, r, high);
    if (planes.high_bits == 2) put_bit_pairs(codes, planes.low_bits, r, high);
    if (planes.low_bits == 2) put_bit_pairs(codes, 0, r, low);
    if (planes.low_bits == 4) put_nibbles(codes, r, low);
  }
}

/// q4_0 and q8_0: blocks of f16 scale and `n_vec` * 4 bytes of codes; `flip` is XORed into the codes.
void interleave(const uint8_t* row, int n_vec, uint32_t flip, int64_t n_block, int r, uint8_t* strip) {
  for (int64_t b = 0; b < n_block; ++b, row += 2 + 4 * n_vec, strip += kHalfBytes + 64 * n_vec) {
    std::memcpy(strip + 2 * r, row, 2);
    for (int p = 0; p < n_vec; ++p) {
      uint32_t four;
      std::memcpy(&four, row + 2 + 4 * p, 4);
      four ^= flip;
      std::memcpy(strip + kHalfBytes + 64 * p + 4 * r, &four, 4);
    }
  }
}

}  // namespace

std::optional<Strip> strip_form(BlockType type) {
  switch (type) {
    case BlockType::q4_0:
      return Strip::q4_0;
    case BlockType::q4_1:
      return Strip::q4_1;
    case BlockType::q5_0:
      return Strip::q5_0;
    case BlockType::q5_1:
      return Strip::q5_1;
    case BlockType::q8_0:
      return Strip::q8_0;
    case BlockType::q2_k:
      return Strip::q2_k;
    case BlockType::q3_k:
      return Strip::q3_k;
    case BlockType::q4_k:
      return Strip::q4_k;
    case BlockType::q5_k:
      return Strip::q5_k;
    case BlockType::q6_k:
      return Strip::q6_k;
    case BlockType::iq4_nl:
      return Strip::iq4_nl;
    case BlockType::iq4_xs:
      return Strip::iq4_xs;
    case BlockType::mxfp4:
      return Strip::mxfp4;
    default:
      return std::nullopt;
  }
}

int64_t strip_bytes(Strip form, int64_t n_in) {
  const StripShape& shape = shape_of(form);
  return n_in / (kBlock * shape.group_blocks) * (shape.head_bytes + shape.group_blocks * shape.block_bytes);
}

void pack_strip(BlockType type, const uint8_t* rows, int n_row, int64_t n_in, uint8_t* strip) {
  const std::optional<Strip> form = strip_form(type);
  CHECK(form && n_row > 0 && n_row <= kLanes && n_in % type_info(type).block_elems == 0);
  const StripShape& shape = shape_of(*form);
  const Planes& planes = kPlanes[static_cast<int>(*form)];
  const int64_t group_bytes = shape.head_bytes + shape.group_blocks * shape.block_bytes;
  const int64_t n_group = n_in / (kBlock * shape.group_blocks);
  if (n_row < kLanes) std::memset(strip, 0, static_cast<size_t>(n_group * group_bytes));
  for (int r = 0; r < n_row; ++r, rows += row_bytes(type, n_in)) {
    const uint8_t* src = rows;
    if (*form == Strip::q4_0) {
      interleave(src, 4, 0, n_group, r, strip);
    } else if (*form == Strip::q8_0) {
      interleave(src, 8, 0x80808080u, n_group, r, strip);
    } else {
      RawGroup group;
      for (int64_t g = 0; g < n_group; ++g, src += type_info(type).block_bytes) {
        reader_of (*form)(src, group);
        put_group(group, planes, shape, r, strip + g * group_bytes);
      }
    }
  }
}

}  // namespace onebit::cpu
