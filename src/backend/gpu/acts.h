// How quantised activations lie in device memory for the tensor cores: constants, sizes, and the kernel that makes
// them. Rows are padded to a multiple of 8 (T of them), columns to units of 128 (forms.h); padding columns are zero,
// padding rows hold anything.
//
// Integer form, up to kCodeRows rows, in the order in which a lane (g, c) of m16n8k32 reads its operand:
//   codes      int8 [unit][pair of blocks 2][T][c 4][(block 0, 4c) (block 0, 16+4c) (block 1, 4c) (block 1, 16+4c)]
//              words of 4 columns
//   scales     f32 [unit][T][4 blocks]
//   starts     s16 [unit][T][4 blocks]    -8 * (sum of the block's codes): what a sum over unsigned nibbles starts at
//   half_sums  s16 [unit][T][8 halves]    sums of 16 codes
//
// F16 form, from kIntegerRows + 1 rows: x = row_scale * half, where a half is code * (block scale / row_scale) and
// row_scale the row's largest block scale
//              (without sign), so that halves stay within +-127 whatever the activations are. Relative error
// of a half: 2^-11 (rounded once), below 2^-24 * 127 of the row's largest value where it is subnormal.
//   halves     f16 [K/64][T/8] atoms of 8 rows x 64 columns, 1,024 bytes: the 128-byte swizzle of wgmma and TMA. Row r
//              is at 128 r, its 16-byte chunk j at 16 (j xor r). Chunk 2s holds the even columns of the 16 columns
//              16s.., chunk 2s+1 the odd ones: with that order a nibble word is two fragments after a mask.
//   row_scales f32 [T]
//
// Nibble form, only where it is asked for and all rows are on the int4 grid, beside the f16 form: the operand of
// m16n8k32 (4 bit).
//   nibbles        [unit][T][c 4][block 4] nibble words as those of q4_0 weights, two's complement
//   nibble_scales  f32 [unit][T][4 blocks]
#pragma once

#include "backend/gpu/forms.h"

namespace onebit::gpu {

inline constexpr int64_t kCodeRows = 128;    // most rows with an integer form
inline constexpr int64_t kIntegerRows = 16;  // most rows without an f16 form
inline constexpr int kActAtomRows = 8;
inline constexpr int kActAtomBytes = 1024;

constexpr int64_t padded_rows(int64_t n_row) { return (n_row + kActAtomRows - 1) / kActAtomRows * kActAtomRows; }

/// `nibbles`: with room for the nibble form.
int64_t tiled_acts_bytes(int64_t max_rows, int64_t n_in, bool nibbles = false);
DeviceActs tiled_acts_at(uint8_t* memory, int64_t max_rows, int64_t n_row, int64_t n_in, ActsMix mix,
                         bool nibbles = false);
/// quantize_acts() of matmul.h into both forms as far as the row count asks for them.
void quantize_tiled(const ActsInput& input, bool rotate, const uint8_t* int4_rows, int64_t multiple,
                    const DeviceActs& acts, gpuStream_t stream);

}  // namespace onebit::gpu
