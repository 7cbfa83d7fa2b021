// How quantised weights lie in device memory for the tensor cores. Constants and addresses only.
//
// A matrix [N, K] is cut into strips of 16 rows, a strip into units of 128 columns (the last rows and columns are
// filled with zeros). A unit is everything that one warp needs for 16 x 128 weights, in the order in which its lanes
// load it, 16 bytes a lane: a warp streams through a strip with full-width loads and shuffles nothing. Lane l of a warp
// belongs to g = l / 4 and c = l % 4 and holds rows g and g + 8; of every 32 columns it holds columns 4c..4c+3 and
// 16+4c..16+4c+3. That is the fragment of mma m16n8k32 (8 bit) as it is, and of two m16n8k16 or m64nNk16 (16 bit) when
// the other operand has its columns in the order of acts.h.
//
// A word is 4 codes of one row, byte i = column i of the four. Planes of a unit, each in the order of lanes:
//   nibbles  [pair of blocks 2][lane 32][block of the pair 2][row g, row g+8] nibble words            1,024 bytes
//            columns 4c+i in the low nibbles, 16+4c+i in the high ones, as in a q4_0 block of the file;
//            of table forms: nibble i = column 4c+i for i < 4, 16+4c+i-4 for the others (a selector of prmt)
//   bits     [lane 32][pair of blocks 2] words: bit 4*(block of the pair) + j of byte i                 256 bytes
//   pairs    [lane 32][block 4] words: bits 2j, 2j+1 of byte i                                          512 bytes
//            j = 0: row g, 4c+i; 1: row g+8, 4c+i; 2: row g, 16+4c+i; 3: row g+8, 16+4c+i
//   bytes    [block 4][lane 32][j 4] words of int8                                                    2,048 bytes
// and after them, for each g: row g, then row g + 8 (but b8f: see the table).
//   n4    nibbles         f16 scale [4 blocks]                                       128   q4_0: code - 8
//   n4k   nibbles         u8 (scale, min) [4 blocks] 128, f16 (d, dmin) 64           192   q4_k
//   n5k   nibbles, bits   as n4k                                                     192   q5_k
//   n6k   nibbles, pairs  s8 scale [8 halves] 128, f32 d 64                          192   q6_k: code - 32
//   t4    nibbles         f16 scale [4 blocks]                                       128   iq4_nl: table[code]
//   t4k   nibbles         s8 scale [4 blocks] 64, f32 d 64                           128   iq4_xs: table[code]
//   b8    bytes           f16 scale [4 blocks]                                       128   q8_0, q5_0
//   b8f   bytes           [block 4][g 8] f32 scale g, scale g+8, min g, min g+8      512   q4_1, q5_1, mxfp4
//   b8k   bytes           s8 scale [8 halves] 128, f32 d 64                          192   q3_k
//   b8km  bytes           s8 scale [8 halves] 128, u8 min [8 halves] 128, f32 (d, dmin) 128   384   q2_k
// weight = scale * code - min; with d: d * scale * code - dmin * min, multiplied in this order.
#pragma once

#include <cstdint>

#include "backend/gpu/matmul.h"

namespace onebit::gpu {

inline constexpr int kStripRows = 16;
inline constexpr int kUnitColumns = 128;

constexpr bool has_table(WeightForm form) { return form == WeightForm::t4 || form == WeightForm::t4k; }
constexpr bool has_bytes(WeightForm form) {
  using enum WeightForm;
  return form == b8 || form == b8f || form == b8k || form == b8km;
}
/// Bytes of the low plane, of the high plane, and of the scales of a unit.
constexpr int low_bytes(WeightForm form) { return has_bytes(form) ? 2048 : 1024; }
constexpr int high_bytes(WeightForm form) { return form == WeightForm::n5k ? 256 : form == WeightForm::n6k ? 512 : 0; }
constexpr int scale_bytes(WeightForm form) {
  using enum WeightForm;
  if (form == n4 || form == t4 || form == t4k || form == b8) return 128;
  return form == b8f ? 512 : form == b8km ? 384 : 192;
}
constexpr int scales_at(WeightForm form) { return low_bytes(form) + high_bytes(form); }
constexpr int unit_bytes(WeightForm form) { return scales_at(form) + scale_bytes(form); }

/// The form that a quantised type takes; plain for float types.
constexpr WeightForm form_of(BlockType type) {
  using enum BlockType;
  switch (type) {
    case q4_0:
      return WeightForm::n4;
    case q4_k:
      return WeightForm::n4k;
    case q5_k:
      return WeightForm::n5k;
    case q6_k:
      return WeightForm::n6k;
    case iq4_nl:
      return WeightForm::t4;
    case iq4_xs:
      return WeightForm::t4k;
    case q8_0:
    case q5_0:
      return WeightForm::b8;
    case q4_1:
    case q5_1:
    case mxfp4:
      return WeightForm::b8f;
    case q3_k:
      return WeightForm::b8k;
    case q2_k:
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
    case n5k:
      return f.template operator()<n5k>();
    case n6k:
      return f.template operator()<n6k>();
    case t4:
      return f.template operator()<t4>();
    case t4k:
      return f.template operator()<t4k>();
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
