// Every block type is read into the same small integers, row by row; the codes of 16 rows are interleaved as they are
// and then pushed together to planes, 64 bytes at a time. q4_0 and q8_0 blocks only need the interleaving.
#include "backend/cpu/repack.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cpu/repack_lanes.h"
#include "base/error.h"

namespace onebit::cpu {
namespace {

/// One row's part of a group of blocks: 8 blocks behind one head, or one block.
struct RawGroup {
  uint8_t head[4];       // f16 factors: of one block its scale (and min), of eight d (and dmin)
  uint8_t own[2][16];    // the blocks' own scales in bytes, by plane; 8 are used
  uint8_t codes[8][32];  // unsigned, without bias
};

/// What a packed form holds: [head planes] and, for each block, [own planes][high plane][low plane].
struct Planes {
  int low_bits, high_bits;
  int own_planes;   // 16 bytes each
  int head_planes;  // 16 f16 each
};

constexpr Planes kPlanes[kStripForms] = {
    {4, 0, 0, 1},  // q4_0
    {4, 0, 0, 2},  // q4_1
    {4, 1, 0, 1},  // q5_0
    {4, 1, 0, 2},  // q5_1
    {8, 0, 0, 1},  // q8_0
    {2, 0, 2, 2},  // q2_k
    {2, 1, 2, 1},  // q3_k
    {4, 0, 2, 2},  // q4_k
    {4, 1, 2, 2},  // q5_k
    {4, 2, 2, 1},  // q6_k
    {4, 0, 0, 1},  // iq4_nl
    {4, 0, 1, 1},  // iq4_xs
    {4, 0, 1, 0},  // mxfp4
};

uint8_t byte(int x) { return static_cast<uint8_t>(x); }

/// The bits of `mask` of 16 bytes, moved to higher ones by `up`, which may be negative; none may leave its byte, so
/// that wider elements can be shifted, which takes fewer instructions.
template <uint8_t mask, int up>
Bytes16 move_bits(const uint8_t* src) {
  const auto bits = reinterpret_cast<Words8>(load16<Bytes16>(src) & mask);
  return reinterpret_cast<Bytes16>(up < 0 ? bits >> -up : bits << up);
}

/// 16 bytes of nibbles: low ones are elements 0..15, high ones 16..31.
void read_nibbles(const uint8_t* src, uint8_t* codes) {
  store16(move_bits<15, 0>(src), codes);
  store16(move_bits<240, -4>(src), codes + 16);
}

/// The fifth bits of 32 elements.
void add_fifth_bits(const uint8_t* src, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= byte((src[i / 8] >> i % 8 & 1) << 4);
}

/// Calls body.operator()<0>() to <n - 1>().
template <int n, class Body>
void unrolled(Body&& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) { (body.template operator()<i>(), ...); }
  (std::make_integer_sequence<int, n>());
}

// Readers of one group of one row; the layouts are those of gguf/blocks*.cpp.
void read_q4_1(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 4);
  read_nibbles(src + 4, to.codes[0]);
}
void read_q5_0(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 2);
  read_nibbles(src + 6, to.codes[0]);
  add_fifth_bits(src + 2, to.codes[0]);
}
void read_q5_1(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 4);
  read_nibbles(src + 8, to.codes[0]);
  add_fifth_bits(src + 4, to.codes[0]);
}
void read_iq4_nl(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 2);
  read_nibbles(src + 2, to.codes[0]);
}
void read_mxfp4(const uint8_t* src, RawGroup& to) {
  to.own[0][0] = src[0];
  read_nibbles(src + 1, to.codes[0]);
}
/// Scales of 4 bits and minimums, or pairs of scales: two planes of 8 bytes, byte by byte in turns.
void read_own_pairs(const uint8_t* src, RawGroup& to) {
  for (int b = 0; b < 8; ++b) {
    to.own[0][b] = src[2 * b];
    to.own[1][b] = src[2 * b + 1];
  }
}

// Two bits of 256 elements: bits 2j, 2j+1 of bytes 32n..32n+31 are block 4n+j.
void read_q2_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src + 80, 4);
  read_own_pairs(src, to);
  unrolled<16>([&]<int i>() {
    constexpr int b = i / 2, half = 16 * (i % 2);
    store16(move_bits<3 << 2 * (b % 4), -2 * (b % 4)>(src + 16 + 32 * (b / 4) + half), to.codes[b] + half);
  });
}
void read_q3_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src + 108, 2);
  const uint8_t* packed = src + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int high = packed[8 + g % 4] >> 2 * (g / 4) & 3;
    to.own[g % 2][g / 2] = byte((low | high << 4) - 32);
  }
  unrolled<16>([&]<int i>() {
    constexpr int b = i / 2, half = 16 * (i % 2);
    const Bytes16 low = move_bits<3 << 2 * (b % 4), -2 * (b % 4)>(src + 32 + 32 * (b / 4) + half);
    store16(low | move_bits<1 << b, 2 - b>(src + half), to.codes[b] + half);
  });
}

/// The scales and minimums of q4_k and q5_k, four at a time (gguf/k_scales.h).
void read_scale_mins(const uint8_t* src, RawGroup& to) {
  uint32_t scales, mins, last;
  std::memcpy(&scales, src, 4);
  std::memcpy(&mins, src + 4, 4);
  std::memcpy(&last, src + 8, 4);
  const uint32_t planes[2][2] = {{scales & 0x3f3f3f3f, (last & 0x0f0f0f0f) | (scales >> 2 & 0x30303030)},
                                 {mins & 0x3f3f3f3f, (last >> 4 & 0x0f0f0f0f) | (mins >> 2 & 0x30303030)}};
  std::memcpy(to.own[0], planes[0], 8);
  std::memcpy(to.own[1], planes[1], 8);
}
void read_q4_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 4);
  read_scale_mins(src + 4, to);
  for (int i = 0; i < 128; i += 16) {
    store16(move_bits<15, 0>(src + 16 + i), to.codes[i / 32 * 2] + i % 32);
    store16(move_bits<240, -4>(src + 16 + i), to.codes[i / 32 * 2 + 1] + i % 32);
  }
}
void read_q5_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 4);
  read_scale_mins(src + 4, to);
  unrolled<16>([&]<int i>() {
    constexpr int b = i / 2, half = 16 * (i % 2);
    const Bytes16 low = move_bits<15 << 4 * (b % 2), -4 * (b % 2)>(src + 48 + 32 * (b / 2) + half);
    store16(low | move_bits<1 << b, 4 - b>(src + 16 + half),
            to.codes[b] + half);  // bit b of byte i: element i of block b
  });
}
void read_q6_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src + 208, 2);
  read_own_pairs(src + 192, to);
  unrolled<16>([&]<int i>() {
    constexpr int b = i / 2, half = 16 * (i % 2), quarter = b % 4;
    const Bytes16 low =
        move_bits<15 << 4 * (quarter / 2), -4 * (quarter / 2)>(src + 64 * (b / 4) + 32 * (quarter & 1) + half);
    store16(low | move_bits<3 << 2 * quarter, 4 - 2 * quarter>(src + 128 + 32 * (b / 4) + half), to.codes[b] + half);
  });
}
void read_iq4_xs(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src, 2);
  const int high = src[2] | src[3] << 8;
  for (int b = 0; b < 8; ++b) {
    const int low = src[4 + b / 2] >> 4 * (b & 1) & 15;
    to.own[0][b] = byte((low | (high >> 2 * b & 3) << 4) - 32);
    read_nibbles(src + 8 + 16 * b, to.codes[b]);
  }
}

/// Planes of a block of 16 rows from its codes, 8 vectors. Each is written by one column of 16 bytes at a time.
void put_nibbles(const uint8_t* codes, uint8_t* plane) {
  for (int at = 0; at < 256; at += 16) {
    store16(move_bits<15, 0>(codes + at) | move_bits<15, 4>(codes + 256 + at), plane + at);
  }
}

/// Bits `from`, from+1 -> the 2-bit plane.
template <int from>
void put_bit_pairs(const uint8_t* codes, uint8_t* plane) {
  for (int at = 0; at < 128; at += 16) {
    const uint8_t* vector = codes + 256 * (at / 64) + at % 64;
    Bytes16 bits{};
    unrolled<4>([&]<int j>() { bits |= move_bits<3 << from, 2 * j - from>(vector + 64 * j); });
    store16(bits, plane + at);
  }
}

/// Bit `from` -> the 1-bit plane.
template <int from>
void put_single_bits(const uint8_t* codes, uint8_t* plane) {
  for (int at = 0; at < 64; at += 16) {
    Bytes16 bits{};
    unrolled<8>([&]<int j>() { bits |= move_bits<1 << from, j - from>(codes + 64 * j + at); });
    store16(bits, plane + at);
  }
}

/// Writes a group of 16 rows into a strip.
template <Strip form>
void put_group(const RawGroup* rows, uint8_t* strip) {
  constexpr Planes kPlanesOf = kPlanes[static_cast<int>(form)];
  constexpr int kBlocks = kStripShapes[static_cast<int>(form)].group_blocks;
  for (int p = 0; p < kPlanesOf.head_planes; ++p, strip += kHalfBytes) {
    for (int r = 0; r < kLanes; ++r) std::memcpy(strip + 2 * r, rows[r].head + 2 * p, 2);
  }
  Bytes16 own[2][8];
  for (int p = 0; p < kPlanesOf.own_planes; ++p) transpose_bytes(rows->own[p], sizeof(RawGroup), own[p]);
  for (int b = 0; b < kBlocks; ++b) {
    for (int p = 0; p < kPlanesOf.own_planes; ++p, strip += kLanes) store16(own[p][b], strip);
    uint8_t codes[kCodeBytes];
    interleave(rows->codes[b], sizeof(RawGroup), 0, codes);
    interleave(rows->codes[b] + 16, sizeof(RawGroup), 0, codes + 256);
    if (kPlanesOf.high_bits == 1) put_single_bits<kPlanesOf.low_bits>(codes, strip);
    if (kPlanesOf.high_bits == 2) put_bit_pairs<kPlanesOf.low_bits>(codes, strip);
    strip += 64 * kPlanesOf.high_bits;
    if (kPlanesOf.low_bits == 2) put_bit_pairs<0>(codes, strip);
    if (kPlanesOf.low_bits == 4) put_nibbles(codes, strip);
    strip += 64 * kPlanesOf.low_bits;
  }
}

using Reader = void (*)(const uint8_t* src, RawGroup& to);

/// The way over the small integers.
template <Strip form, Reader read>
void pack_groups(BlockType type, const uint8_t* rows, int64_t n_in, uint8_t* strip) {
  constexpr StripShape kShape = kStripShapes[static_cast<int>(form)];
  const int64_t stride = row_bytes(type, n_in), n_group = n_in / (kBlock * kShape.group_blocks);
  RawGroup group[kLanes] = {};
  for (int64_t g = 0; g < n_group; ++g, rows += type_info(type).block_bytes) {
    for (int r = 0; r < kLanes; ++r) read(rows + r * stride, group[r]);
    put_group<form>(group, strip + g * (kShape.head_bytes + kShape.group_blocks * kShape.block_bytes));
  }
}

/// q4_0 and q8_0: blocks of f16 scale and `n_vec` * 4 bytes of codes; `flip` is XORed into the codes.
template <int n_vec, uint32_t flip>
void pack_blocks(BlockType type, const uint8_t* rows, int64_t n_in, uint8_t* strip) {
  const int64_t stride = row_bytes(type, n_in);
  for (int64_t b = 0; b < n_in / kBlock; ++b, rows += 2 + 4 * n_vec, strip += kHalfBytes + 64 * n_vec) {
    for (int r = 0; r < kLanes; ++r) std::memcpy(strip + 2 * r, rows + r * stride, 2);
    for (int p = 0; p < n_vec; p += 4) interleave(rows + 2 + 4 * p, stride, flip, strip + kHalfBytes + 64 * p);
  }
}

using Packer = void (*)(BlockType type, const uint8_t* rows, int64_t n_in, uint8_t* strip);

/// What packs all 16 rows of a strip, by form.
constexpr Packer kPackers[kStripForms] = {
    pack_blocks<4, 0>,
    pack_groups<Strip::q4_1, read_q4_1>,
    pack_groups<Strip::q5_0, read_q5_0>,
    pack_groups<Strip::q5_1, read_q5_1>,
    pack_blocks<8, 0x80808080u>,
    pack_groups<Strip::q2_k, read_q2_k>,
    pack_groups<Strip::q3_k, read_q3_k>,
    pack_groups<Strip::q4_k, read_q4_k>,
    pack_groups<Strip::q5_k, read_q5_k>,
    pack_groups<Strip::q6_k, read_q6_k>,
    pack_groups<Strip::iq4_nl, read_iq4_nl>,
    pack_groups<Strip::iq4_xs, read_iq4_xs>,
    pack_groups<Strip::mxfp4, read_mxfp4>,
};

/// Rows of 16-bit elements, eight at a time, or of 32-bit ones, four at a time.
template <class Vector, int64_t n>
void pack_elements(const uint8_t* rows, int64_t row_bytes, int64_t n_in, uint8_t* to, int64_t to_row) {
  constexpr int64_t kSize = 16 / n;
  for (int64_t i = 0; i < n_in; i += n) {
    const int64_t columns = std::min(n, n_in - i);
    for (int64_t r = 0; r < kLanes; r += n) {
      Vector m[n] = {};
      for (int64_t k = 0; k < n; ++k) {
        const uint8_t* from = rows + (r + k) * row_bytes + i * kSize;
        if (columns == n) {
          m[k] = load16<Vector>(from);
        } else {
          std::memcpy(&m[k], from, static_cast<size_t>(columns * kSize));
        }
      }
      transpose(m);
      for (int64_t k = 0; k < columns; ++k) store16(m[k], to + (i + k) * to_row + r * kSize);
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
  const Packer pack = kPackers[static_cast<int>(*form)];
  if (n_row == kLanes) return pack(type, rows, n_in, strip);
  const auto bytes = static_cast<size_t>(row_bytes(type, n_in));
  std::vector<uint8_t> padded(kLanes * bytes);
  std::memcpy(padded.data(), rows, static_cast<size_t>(n_row) * bytes);
  pack(type, padded.data(), n_in, strip);
}

void pack_floats(BlockType type, const uint8_t* rows, int n_row, int64_t n_in, uint8_t* to, int64_t to_row) {
  const int64_t bytes = row_bytes(type, n_in);
  std::vector<uint8_t> padded;
  if (n_row < kLanes) {
    padded.resize(static_cast<size_t>(kLanes * bytes));
    std::memcpy(padded.data(), rows, static_cast<size_t>(n_row * bytes));
    rows = padded.data();
  }
  CHECK(bytes == 4 * n_in || bytes == 2 * n_in);
  if (bytes == 4 * n_in) return pack_elements<Words4, 4>(rows, bytes, n_in, to, to_row);
  pack_elements<Words8, 8>(rows, bytes, n_in, to, to_row);
}

}  // namespace onebit::cpu
