// Tile kernels for Arm's dot product instructions (sdot): four registers hold the 16 rows of a strip, four tokens at a
// time share the weights. Codes are made signed as they are read, so that sums need no zero point, except those of
// q4_0, which start at what theirs adds.
#include <arm_neon.h>

#include "backend/cpu/matmul.h"

namespace onebit::cpu {
namespace {

#define ONEBIT_INLINE __attribute__((always_inline)) static inline

constexpr int kAhead = 1024;  // bytes

/// y += a dot product of each row's four codes with columns 4 * Column .. 4 * Column + 3 of the 16 at `a`.
template <int Column>
ONEBIT_INLINE int32x4_t dot4(int32x4_t y, int8x16_t codes, int8x16_t a) {
  return vdotq_laneq_s32(y, codes, a, Column);
}
/// The same for N (4 or 8) neighbouring vectors of codes.
template <int N>
ONEBIT_INLINE int32x4_t dot_columns(int32x4_t y, const int8x16_t* codes, const int8_t* a) {
  for (int part = 0; part < N / 4; ++part) {
    const int8x16_t columns = vld1q_s8(a + 16 * part);
    y = dot4<0>(y, codes[4 * part], columns);
    y = dot4<1>(y, codes[4 * part + 1], columns);
    y = dot4<2>(y, codes[4 * part + 2], columns);
    y = dot4<3>(y, codes[4 * part + 3], columns);
  }
  return y;
}

ONEBIT_INLINE float32x4_t halves(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
}
ONEBIT_INLINE float32x4_t floats(const uint8_t* p) { return vld1q_f32(reinterpret_cast<const float*>(p)); }
ONEBIT_INLINE int8x16_t without_bias(const uint8_t* p) {
  return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(kQ8Bias)));
}

// How blocks are read. read(block, quarter, codes, scale, min): rows 4 * quarter .. 4 * quarter + 3.
struct Q4 {
  static constexpr int kBytes = kQ4BlockBytes, kGroups = 1;
  static constexpr bool kMin = false, kStart = true;  // kStart: 0 is stored as 8
  ONEBIT_INLINE void read(const uint8_t* p, int quarter, int8x16_t* codes, float32x4_t* scale, float32x4_t*) {
    for (int j = 0; j < 4; ++j) {
      const uint8x16_t x = vld1q_u8(p + kHalfBytes + 64 * j + 16 * quarter);
      codes[j] = vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(15)));
      codes[j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(x, 4));
    }
    scale[0] = halves(p + 8 * quarter);
  }
};
struct Q8 {
  static constexpr int kBytes = kQ8BlockBytes, kGroups = 1;
  static constexpr bool kMin = false, kStart = false;
  ONEBIT_INLINE void read(const uint8_t* p, int quarter, int8x16_t* codes, float32x4_t* scale, float32x4_t*) {
    for (int j = 0; j < 8; ++j) codes[j] = without_bias(p + kHalfBytes + 64 * j + 16 * quarter);
    scale[0] = halves(p + 8 * quarter);
  }
};
/// Codes with a minimum are at most 63: they have no zero point and are signed as they are.
template <int Groups, bool Min>
struct WideBlock {
  static constexpr int kBytes = kCodeBytes + 64 * Groups * (Min ? 2 : 1), kGroups = Groups;
  static constexpr bool kMin = Min, kStart = false;
  ONEBIT_INLINE void read(const uint8_t* p, int quarter, int8x16_t* codes, float32x4_t* scale, float32x4_t* min) {
    for (int j = 0; j < 8; ++j) {
      const uint8_t* at = p + 64 * j + 16 * quarter;
      codes[j] = Min ? vreinterpretq_s8_u8(vld1q_u8(at)) : without_bias(at);
    }
    for (int g = 0; g < Groups; ++g) {
      scale[g] = floats(p + kCodeBytes + 64 * g + 16 * quarter);
      if (Min) min[g] = floats(p + kCodeBytes + 64 * (Groups + g) + 16 * quarter);
    }
  }
};

/// y [T, 16] (4 of the 16 lanes) (+)= a quarter of a strip times tokens t0 .. t0 + T - 1 of a tile of n_tok tokens.
template <class Form, int T>
void quarter_tile(const uint8_t* strip, int quarter, const uint8_t* act, int n_tok, int t0, int64_t n_block,
                  const TileOut& out) {
  constexpr int kGroups = Form::kGroups, kPart = 8 / kGroups;
  float32x4_t total[T];
  for (int t = 0; t < T; ++t) total[t] = out.add ? vld1q_f32(out.y + t * out.row) : vdupq_n_f32(0);
  for (int64_t b = 0; b < n_block; ++b, strip += Form::kBytes, act += kActBlockBytes * n_tok) {
    int8x16_t codes[8];
    float32x4_t scale[kGroups], min[kGroups];
    Form::read(strip, quarter, codes, scale, min);
    if (quarter == 0) {
      for (int i = 0; i < Form::kBytes; i += 64) __builtin_prefetch(strip + kAhead + i);
    }
    const auto* scales = reinterpret_cast<const float*>(act + 32 * n_tok) + t0;
    const auto* starts = reinterpret_cast<const int32_t*>(act + 36 * n_tok) + t0;
    const auto* half_sums = reinterpret_cast<const int16_t*>(act + 40 * n_tok) + 2 * t0;
    for (int t = 0; t < T; ++t) {
      const int8_t* a = reinterpret_cast<const int8_t*>(act) + 32 * (t0 + t);
      for (int g = 0; g < kGroups; ++g) {
        const int32_t eighth = kGroups == 1 ? starts[t] : -8 * half_sums[2 * t + g];  // -8 * (sum of the codes)
        const int32x4_t start = vdupq_n_s32(Form::kStart ? eighth : 0);
        const int32x4_t products = dot_columns<kPart>(start, codes + kPart * g, a + 4 * kPart * g);
        total[t] = vfmaq_f32(total[t], vcvtq_f32_s32(products), vmulq_n_f32(scale[g], scales[t]));
        if (Form::kMin) {
          const float32x4_t sums = vcvtq_f32_s32(vdupq_n_s32(eighth));
          total[t] = vfmaq_f32(total[t], sums, vmulq_n_f32(min[g], scales[t]));
        }
      }
    }
  }
  for (int t = 0; t < T; ++t) vst1q_f32(out.y + t * out.row, total[t]);
}

/// The quarters block range by block range, so that all but the first find the weights in L1.
template <class Form, int T>
void tile(const uint8_t* strip, const uint8_t* act, int n_tok, int t0, int64_t n_block, const TileOut& out) {
  constexpr int64_t kStep = 16;
  for (int64_t b = 0; b < n_block; b += kStep) {
    const int64_t n = n_block - b < kStep ? n_block - b : kStep;
    for (int quarter = 0; quarter < 4; ++quarter) {
      quarter_tile<Form, T>(strip + b * Form::kBytes, quarter, act + b * kActBlockBytes * n_tok, n_tok, t0, n,
                            {out.y + 4 * quarter, out.row, out.add || b > 0});
    }
  }
}

template <class Form>
void tiles(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  const auto from = [&](int t) { return TileOut{out.y + t * out.row, out.row, out.add}; };
  int t = 0;
  for (; t + 4 <= n_tok; t += 4) tile<Form, 4>(strip, act, n_tok, t, n_block, from(t));
  if (t + 2 <= n_tok) {
    tile<Form, 2>(strip, act, n_tok, t, n_block, from(t));
    t += 2;
  }
  if (t < n_tok) tile<Form, 1>(strip, act, n_tok, t, n_block, from(t));
}

}  // namespace

void matmul_q4_0_act_dotprod(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q4>(strip, act, n_tok, n_block, out);
}
void matmul_q8_0_act_dotprod(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q8>(strip, act, n_tok, n_block, out);
}
void matmul_wide32_act_dotprod(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                               const TileOut& out) {
  tiles<WideBlock<1, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_act_dotprod(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                               const TileOut& out) {
  tiles<WideBlock<2, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide32_min_act_dotprod(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                   const TileOut& out) {
  tiles<WideBlock<1, true>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_min_act_dotprod(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                   const TileOut& out) {
  tiles<WideBlock<2, true>>(wide, act, n_tok, n_block, out);
}

}  // namespace onebit::cpu
