// How quantised weights lie in device memory for the tensor cores. Constants and addresses only.
//
// A matrix [N, K] is cut into strips of 16 rows, a strip into units of 128 columns (the last rows and columns are
// filled with zeros). A unit is everything that one warp needs for 16 x 128 weights, in the order in which its lanes
// load it, 16 bytes a lane: a warp streams through a strip with full-width loads and shuffles nothing. Lane l of a warp
// belongs to g = l / 4 and c = l % 4 and holds rows g and g + 8; of every 32 columns it holds columns 4c..4c+3 and
// 16+4c..16+4c+3. That is the fragment of mma m16n8k32 (8 bit) as it is, and of two m16n8k16 or m64nNk16 (16 bit) when
// the other operand has its columns in the order of acts.h.
//
// A word is 4 codes of one row, byte i = column i of the four. A nibble word has columns 4c+i in its low nibbles and
// columns 16+4c+i in its high nibbles, as a q4_0 block of the file.
//   nibbles  [pair of blocks 2][lane 32][block of the pair 2][row g, row g+8] nibble words            1,024 bytes
//   bytes    [block 4][lane 32][(g, 4c), (g+8, 4c), (g, 16+4c), (g+8, 16+4c)] words of int8           2,048 bytes
// and after them, for each g: row g, then row g + 8 (n4k and b8f: see the table)
//   n4    nibbles  f16 scale [4 blocks]                                            128   q4_0: code - 8
//   n4k   nibbles  u8 (scale, min) [4 blocks] 128, f16 (d, dmin) 64                192   q4_k
//   b8    bytes    f16 scale [4 blocks]                                            128   q8_0, q5_0, iq4_nl
//   b8f   bytes    [block 4][g 8] f32 scale g, scale g+8, min g, min g+8           512   q4_1, q5_1, mxfp4
//   b8k   bytes    s8 scale [8 halves] 128, f32 d 64                               192   q6_k, q3_k, iq4_xs
//   b8km  bytes    s8 scale [8 halves] 128, u8 min [8 halves] 128, f32 (d, dmin) 128     384   q5_k, q2_k
// weight = scale * code - min; with d: d * scale * code - dmin * min, multiplied in this order.
#pragma once

#include <cstdint>

#include "backend/gpu/matmul.h"

namespace onebit::gpu {

inline constexpr int kStripRows = 16;
inline constexpr int kUnitColumns = 128;
inline constexpr int kNibbleBytes = 1024;
inline constexpr int kByteCodeBytes = 2048;

constexpr bool has_nibbles(WeightForm form) { return form == WeightForm::n4 || form == WeightForm::n4k; }
constexpr int code_bytes(WeightForm form) { return has_nibbles(form) ? kNibbleBytes : kByteCodeBytes; }
constexpr int unit_bytes(WeightForm form) {
  switch (form) {
    case WeightForm::n4:
      return kNibbleBytes + 128;
    case WeightForm::n4k:
      return kNibbleBytes + 192;
    case WeightForm::b8:
      return kByteCodeBytes + 128;
    case WeightForm::b8f:
      return kByteCodeBytes + 512;
    case WeightForm::b8k:
      return kByteCodeBytes + 192;
    case WeightForm::b8km:
      return kByteCodeBytes + 384;
    default:
      return 0;
  }
}

/// The form that a quantised type takes; plain for float types.
constexpr WeightForm form_of(BlockType type) {
  switch (type) {
    case BlockType::q4_0:
      return WeightForm::n4;
    case BlockType::q4_k:
      return WeightForm::n4k;
    case BlockType::q8_0:
    case BlockType::q5_0:
    case BlockType::iq4_nl:
      return WeightForm::b8;
    case BlockType::q4_1:
    case BlockType::q5_1:
    case BlockType::mxfp4:
      return WeightForm::b8f;
    case BlockType::q6_k:
    case BlockType::q3_k:
    case BlockType::iq4_xs:
      return WeightForm::b8k;
    case BlockType::q5_k:
    case BlockType::q2_k:
      return WeightForm::b8km;
    default:
      return WeightForm::plain;
  }
}

/// Calls f.template operator()<form>() with the form as a constant; nothing for plain.
template <class F>
void with_form(WeightForm form, F f) {
  using enum WeightForm;
  switch (form) {
    case n4:
      return f.template operator()<n4>();
    case n4k:
      return f.template operator()<n4k>();
    case b8:
      return f.template operator()<b8>();
    case b8f:
      return f.template operator()<b8f>();
    case b8k:
      return f.template operator()<b8k>();
    case b8km:
      return f.template operator()<b8km>();
    case plain:
      return;
  }
}

constexpr int64_t n_strip(int64_t n_out) { return (n_out + kStripRows - 1) / kStripRows; }
constexpr int64_t n_unit(int64_t n_in) { return (n_in + kUnitColumns - 1) / kUnitColumns; }
constexpr int64_t form_bytes(WeightForm form, int64_t n_out, int64_t n_in) {
  return n_strip(n_out) * n_unit(n_in) * unit_bytes(form);
}

/// Packs n_row rows of the file into strips; rows missing from the last strip become zeros.
void pack_strips(BlockType type, const uint8_t* rows, int64_t n_row, int64_t n_in, uint8_t* strips, gpuStream_t stream);
/// gather() of matmul.h for weights in a form other than plain.
void gather_form(const DeviceWeight& weight, const int32_t* ids, int64_t n_row, float* y, gpuStream_t stream);

}  // namespace onebit::gpu
