// Every block type is read into the same small integers, row by row; the codes of 16 rows are interleaved as they are
// and then pushed together to planes, 64 bytes at a time. q4_0 and q8_0 blocks only need the interleaving.
#include "backend/cpu/repack.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cpu/repack_lanes.h"
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
  const auto pairs = load16<Bytes16>(src);
  store16(pairs & 15, codes);
  store16(pairs >> 4, codes + 16);
}

/// Adds bits `from` .. of 32 bytes, as many as `mask` has, to codes as their bits `to` ..
template <int from, uint8_t mask, int to>
void add_bits(const uint8_t* src, uint8_t* codes) {
  for (int i = 0; i < 32; i += 16) {
    const Bytes16 bits = (load16<Bytes16>(src + i) >> from & mask) << to;
    store16(load16<Bytes16>(codes + i) | bits, codes + i);
  }
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
  std::memset(to.codes, 0, sizeof to.codes);
  unrolled<8>([&]<int b>() { add_bits<2 * (b % 4), 3, 0>(src + 32 * (b / 4), to.codes[b]); });
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
  unrolled<8>([&]<int b>() { add_bits<b, 1, 2>(src, to.codes[b]); });
}
/// q4_k and q5_k.
void read_k_nibbles(const uint8_t* src, const uint8_t* nibbles, RawGroup& to) {
  std::memcpy(to.head, src, 4);
  for (int b = 0; b < 8; ++b) {
    const ScaleMin packed = unpack_scale_min(src + 4, b);
    to.own[b][0] = byte(packed.scale);
    to.own[b][1] = byte(packed.min);
  }
  for (int b = 0; b < 8; b += 2) {
    for (int i = 0; i < 32; i += 16) {
      const auto pairs = load16<Bytes16>(nibbles + 16 * b + i);
      store16(pairs & 15, to.codes[b] + i);
      store16(pairs >> 4, to.codes[b + 1] + i);
    }
  }
}
void read_q4_k(const uint8_t* src, RawGroup& to) { read_k_nibbles(src, src + 16, to); }
void read_q5_k(const uint8_t* src, RawGroup& to) {
  read_k_nibbles(src, src + 48, to);
  unrolled<8>([&]<int b>() { add_bits<b, 1, 4>(src + 16, to.codes[b]); });  // bit b of byte i: element i of block b
}
void read_q6_k(const uint8_t* src, RawGroup& to) {
  std::memcpy(to.head, src + 208, 2);
  std::memset(to.codes, 0, sizeof to.codes);
  unrolled<8>([&]<int b>() {
    constexpr int half = b / 4, quarter = b % 4;
    std::memcpy(to.own[b], src + 192 + 2 * b, 2);
    add_bits<4 * (quarter / 2), 15, 0>(src + 64 * half + 32 * (quarter & 1), to.codes[b]);
    add_bits<2 * quarter, 3, 4>(src + 128 + 32 * half, to.codes[b]);
  });
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

/// Planes of a block of 16 rows from its codes, 8 vectors. Each is written by one column of 16 bytes at a time.
void put_nibbles(const uint8_t* codes, uint8_t* plane) {
  for (int at = 0; at < 256; at += 16) {
    store16((load16<Bytes16>(codes + at) & 15) | load16<Bytes16>(codes + 256 + at) << 4, plane + at);
  }
}

/// Bits `from`, from+1 -> the 2-bit plane.
template <int from>
void put_bit_pairs(const uint8_t* codes, uint8_t* plane) {
  for (int at = 0; at < 128; at += 16) {
    const uint8_t* vector = codes + 256 * (at / 64) + at % 64;
    Bytes16 bits{};
    unrolled<4>([&]<int j>() { bits |= (load16<Bytes16>(vector + 64 * j) >> from & 3) << 2 * j; });
    store16(bits, plane + at);
  }
}

/// Bit `from` -> the 1-bit plane.
template <int from>
void put_single_bits(const uint8_t* codes, uint8_t* plane) {
  for (int at = 0; at < 64; at += 16) {
    Bytes16 bits{};
    unrolled<8>([&]<int j>() { bits |= (load16<Bytes16>(codes + 64 * j + at) >> from & 1) << j; });
    store16(bits, plane + at);
  }
}

/// Writes a group of 16 rows into a strip.
void put_group(const RawGroup* rows, const Planes& planes, const StripShape& shape, uint8_t* strip) {
  for (int p = 0; p < planes.head_planes; ++p) {
    for (int r = 0; r < kLanes; ++r) std::memcpy(strip + kHalfBytes * p + 2 * r, rows[r].head + 2 * p, 2);
  }
  uint8_t* block = strip + shape.head_bytes;
  for (int b = 0; b < shape.group_blocks; ++b, block += shape.block_bytes) {
    const int own_bytes = planes.own_bytes, plane_bytes = kLanes * own_bytes;
    for (int p = 0; p < planes.own_planes; ++p) {
      for (int r = 0; r < kLanes; ++r) {
        uint8_t* to = block + plane_bytes * p + own_bytes * r;
        const uint8_t* from = rows[r].own[b] + own_bytes * p;
        if (own_bytes == 2) {
          std::memcpy(to, from, 2);
        } else {
          *to = *from;
        }
      }
    }
    uint8_t codes[kCodeBytes];
    interleave(rows->codes[b], sizeof(RawGroup), 0, codes);
    interleave(rows->codes[b] + 16, sizeof(RawGroup), 0, codes + 256);
    uint8_t* high = block + plane_bytes * planes.own_planes;
    uint8_t* low = high + 64 * planes.high_bits;
    if (planes.low_bits == 2) put_bit_pairs<0>(codes, low);
    if (planes.low_bits == 2 && planes.high_bits == 1) put_single_bits<2>(codes, high);
    if (planes.low_bits == 4) put_nibbles(codes, low);
    if (planes.low_bits == 4 && planes.high_bits == 1) put_single_bits<4>(codes, high);
    if (planes.low_bits == 4 && planes.high_bits == 2) put_bit_pairs<4>(codes, high);
  }
}

/// q4_0 and q8_0: blocks of f16 scale and `n_vec` * 4 bytes of codes; `flip` is XORed into the codes.
template <int n_vec>
void put_blocks(const uint8_t* rows, int64_t stride, uint32_t flip, int64_t n_block, uint8_t* strip) {
  for (int64_t b = 0; b < n_block; ++b, rows += 2 + 4 * n_vec, strip += kHalfBytes + 64 * n_vec) {
    for (int r = 0; r < kLanes; ++r) std::memcpy(strip + 2 * r, rows + r * stride, 2);
    for (int p = 0; p < n_vec; p += 4) interleave(rows + 2 + 4 * p, stride, flip, strip + kHalfBytes + 64 * p);
  }
}

/// Packs all 16 rows of a strip.
void pack_rows(BlockType type, const uint8_t* rows, int64_t n_in, uint8_t* strip) {
  const Strip form = *strip_form(type);
  const StripShape& shape = shape_of(form);
  const int64_t n_group = n_in / (kBlock * shape.group_blocks), stride = row_bytes(type, n_in);
  if (form == Strip::q4_0) return put_blocks<4>(rows, stride, 0, n_group, strip);
  if (form == Strip::q8_0) return put_blocks<8>(rows, stride, 0x80808080u, n_group, strip);
  const Reader read = reader_of(form);
  RawGroup group[kLanes];
  for (int64_t g = 0; g < n_group; ++g, rows += type_info(type).block_bytes) {
    for (int r = 0; r < kLanes; ++r) read(rows + r * stride, group[r]);
    put_group(group, kPlanes[static_cast<int>(form)], shape, strip);
    strip += shape.head_bytes + shape.group_blocks * shape.block_bytes;
  }
}

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
  CHECK(strip_form(type) && n_row > 0 && n_row <= kLanes && n_in % type_info(type).block_elems == 0);
  if (n_row == kLanes) return pack_rows(type, rows, n_in, strip);
  const auto bytes = static_cast<size_t>(row_bytes(type, n_in));
  std::vector<uint8_t> padded(kLanes * bytes);
  std::memcpy(padded.data(), rows, static_cast<size_t>(n_row) * bytes);
  pack_rows(type, padded.data(), n_in, strip);
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
