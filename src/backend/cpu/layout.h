// The memory forms that the kernels of this folder work on. Constants only: this header is included by files that are
// compiled for different instruction sets, so it must not hold anything that the linker could merge between them.
//
// Everything is built around 16: a strip is 16 output rows of a weight matrix side by side, so that one lane of a
// vector belongs to one output and no sum ever crosses lanes.
//
// Activations (Dtype::act), made by `quantize`: the rows of a value are cut into tiles of 16 tokens, the last tile
// holds the rest. A tile of T tokens is K/32 blocks; a block is
//     int8  codes[T][32]
//     f32   scale[T]
//     int32 start[T]       -8 * (sum of the codes): what an accumulator of a Q4_0 dot product starts at
//     int16 halves[T][2]   sums of codes 0..15 and 16..31
//
// Strips of quantised weights: K/32 blocks (or K/256 groups of 8 blocks behind a common head) of 16 rows each. Codes
// lie in vectors of 64 bytes, 4 bytes per row: byte 4r+i of vector j is the code of row r, column 4j+i, j = 0..7. That
// is the operand shape of the 4-way integer dot products (vpdpbusd, vpmaddubsw). Planes of fewer bits hold several
// vectors in the bits of one:
//     nibble plane, 4 vectors:  low nibbles of vector p are vector p, high nibbles are vector p+4
//     2-bit plane, 2 vectors:   bits 2i, 2i+1 of vector p are vector 4p+i
//     1-bit plane, 1 vector:    bit i is vector i
// repack.cpp lists what each block type has.
//
// Wide blocks: what strips of every type but q4_0 and q8_0 are unpacked to before they are multiplied, a few blocks at
// a time: 8 vectors of u8 codes, then f32 scale[G][16], then f32 min_eighth[G][16] for types with a minimum; G = 1, or
// 2 for types with a scale for every 16 columns (vectors 0..3 and 4..7). Weight = scale * (code - 128) without, and
// scale * code - 8 * min_eighth with a minimum.
//
// Float weights: strips of up to 64 rows (the last one narrower, but a multiple of 16), [K][rows], in the file's type.
#pragma once

#include <cstdint>

namespace onebit::cpu {

constexpr int kLanes = 16;          // rows of a strip, floats of a vector
constexpr int kBlock = 32;          // columns that share an activation scale
constexpr int kTileTokens = 16;     // tokens of a full activation tile
constexpr int kActBlockBytes = 44;  // per token

constexpr int kCodeBytes = kLanes * kBlock;  // 8 vectors of codes
constexpr int kHalfBytes = 2 * kLanes;       // 16 f16 values
constexpr int kQ4BlockBytes = kHalfBytes + kCodeBytes / 2;
constexpr int kQ8BlockBytes = kHalfBytes + kCodeBytes;
constexpr int kQ8Bias = 128;  // q8_0 codes and wide codes without a minimum are stored as u8 = code + 128

/// The four kinds of wide blocks.
enum class Wide : uint8_t { by32, by16, by32_min, by16_min };
constexpr int kWideKinds = 4;
constexpr int kWideBytes[kWideKinds] = {kCodeBytes + 64, kCodeBytes + 128, kCodeBytes + 128, kCodeBytes + 256};
constexpr int kWideBytesMax = kCodeBytes + 256;

constexpr int kFloatStrip = 64;  // rows of a strip of float weights

/// Grids of activation codes: int8, or int4 by a rule of plan/op.h.
enum class ActGrid : uint8_t { int8, int4_amax, int4_extreme, int4_search };

/// Packed forms of quantised strips, one per block type.
enum class Strip : uint8_t { q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4 };
constexpr int kStripForms = 13;

/// Shape of a packed form.
struct StripShape {
  Wide wide;         // what it unpacks to
  int group_blocks;  // blocks behind one head
  int head_bytes;    // f16 factors of the group's scales (and minimums)
  int block_bytes;   // the block's own scales and planes
};
constexpr StripShape kStripShapes[kStripForms] = {
    {Wide::by32, 1, 0, 288},       // q4_0: scale f16 | nibbles
    {Wide::by32_min, 1, 0, 320},   // q4_1: scale f16, min f16 | nibbles
    {Wide::by32, 1, 0, 352},       // q5_0: scale f16 | 1 bit | nibbles
    {Wide::by32_min, 1, 0, 384},   // q5_1: scale f16, min f16 | 1 bit | nibbles
    {Wide::by32, 1, 0, 544},       // q8_0: scale f16 | bytes
    {Wide::by16_min, 8, 64, 160},  // q2_k: d, dmin f16; 2 x (scale | min << 4) u8 | 2 bits
    {Wide::by16, 8, 32, 224},      // q3_k: d f16; 2 x scale s8 | 1 bit | 2 bits
    {Wide::by32_min, 8, 64, 288},  // q4_k: d, dmin f16; scale u8, min u8 | nibbles
    {Wide::by32_min, 8, 64, 352},  // q5_k: d, dmin f16; scale u8, min u8 | 1 bit | nibbles
    {Wide::by16, 8, 32, 416},      // q6_k: d f16; 2 x scale s8 | 2 bits | nibbles
    {Wide::by32, 1, 0, 288},       // iq4_nl: scale f16 | nibbles, indices of a table
    {Wide::by32, 8, 32, 272},      // iq4_xs: d f16; scale s8 | nibbles, indices of a table
    {Wide::by32, 1, 0, 272},       // mxfp4: exponent u8 | nibbles, indices of a table
};

/// Where the products of a strip and a tile go: row t to y + t * row, 16 floats each.
struct TileOut {
  float* y;
  int64_t row;  // floats from one row to the next
  bool add;     // to what is there, else it is overwritten
};

}  // namespace onebit::cpu
