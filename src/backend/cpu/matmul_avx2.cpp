// Tile kernels on AVX2 (no VNNI): vpmaddubsw multiplies u8 by s8 and adds pairs into saturating 16-bit sums, vpmaddwd
// widens. Four tokens at a time share the weights in registers; half a strip (8 rows) fills a register.
//
// Saturation: with unsigned 4- to 5-bit codes (<= 31) and |activation| <= 127, four products of pairs stay below
// 4 * 2 * 31 * 127 = 31,496, and with nibbles (<= 15) eight do: 30,480. Codes around 128 would overflow at once, so
// they are made signed and their sign is moved to the activation: |w| <= 128 gives pairs of at most 32,512.
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/layout.h"
#include "backend/cpu/matmul.h"

namespace onebit::cpu {
namespace {

#define ONEBIT_INLINE __attribute__((always_inline)) static inline

constexpr int kAhead = 4096;  // bytes

ONEBIT_INLINE __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
ONEBIT_INLINE __m256 halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ONEBIT_INLINE __m256 floats(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
/// The 4 codes at `a` in every lane.
ONEBIT_INLINE __m256i four(const int8_t* a) {
  int32_t x;
  memcpy(&x, a, 4);
  return _mm256_set1_epi32(x);
}
ONEBIT_INLINE __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

/// Dot products of N vectors of small unsigned codes (see the bound above) with the codes at `a`.
template <int N>
ONEBIT_INLINE __m256i dot_small(const __m256i* codes, const int8_t* a) {
  __m256i pairs = _mm256_maddubs_epi16(codes[0], four(a));
#pragma GCC unroll 8
  for (int j = 1; j < N; ++j) pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes[j], four(a + 4 * j)));
  return widened(pairs);
}

/// The same for signed codes.
template <int N>
ONEBIT_INLINE __m256i dot_signed(const __m256i* codes, const int8_t* a) {
  __m256i total = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[j]), _mm256_sign_epi8(four(a + 4 * j), codes[j]));
    total = _mm256_add_epi32(total, widened(pairs));
  }
  return total;
}

/// vectors of codes of rows 8 * half .. 8 * half + 7, as signed values.
ONEBIT_INLINE void read_signed(const uint8_t* p, int half, __m256i* codes) {
  const __m256i flip = _mm256_set1_epi8(-128);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) codes[j] = _mm256_xor_si256(load32(p + 64 * j + 32 * half), flip);
}

// How each form is read and multiplied. `half` selects 8 of the 16 rows.
struct Q4 {
  static constexpr int kBytes = kQ4BlockBytes, kGroups = 1;
  static constexpr bool kMin = false, kStart = true;
  ONEBIT_INLINE void read(const uint8_t* p, int half, __m256i* codes, __m256* scale, __m256*) {
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i x = load32(p + kHalfBytes + 64 * j + 32 * half);
      codes[j] = _mm256_and_si256(x, low);
      codes[j + 4] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
    }
    scale[0] = halves(p + 16 * half);
  }
  ONEBIT_INLINE __m256i dot(const __m256i* codes, const int8_t* a) { return dot_small<8>(codes, a); }
};
struct Q8 {
  static constexpr int kBytes = kQ8BlockBytes, kGroups = 1;
  static constexpr bool kMin = false, kStart = false;
  ONEBIT_INLINE void read(const uint8_t* p, int half, __m256i* codes, __m256* scale, __m256*) {
    read_signed(p + kHalfBytes, half, codes);
    scale[0] = halves(p + 16 * half);
  }
  ONEBIT_INLINE __m256i dot(const __m256i* codes, const int8_t* a) { return dot_signed<8>(codes, a); }
};
template <int Groups, bool Min>
struct WideBlock {
  static constexpr int kBytes = kCodeBytes + 64 * Groups * (Min ? 2 : 1), kGroups = Groups;
  static constexpr bool kMin = Min, kStart = false;
  ONEBIT_INLINE void read(const uint8_t* p, int half, __m256i* codes, __m256* scale, __m256* min) {
    if constexpr (Min) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) codes[j] = load32(p + 64 * j + 32 * half);
    } else {
      read_signed(p, half, codes);
    }
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      scale[g] = floats(p + kCodeBytes + 64 * g + 32 * half);
      if constexpr (Min) min[g] = floats(p + kCodeBytes + 64 * (Groups + g) + 32 * half);
    }
  }
  ONEBIT_INLINE __m256i dot(const __m256i* codes, const int8_t* a) {
    if constexpr (!Min) return dot_signed<8 / Groups>(codes, a);
    if constexpr (Min && Groups == 2) return dot_small<4>(codes, a);
    if constexpr (Min && Groups == 1) {
      return _mm256_add_epi32(dot_small<4>(codes, a), dot_small<4>(codes + 4, a + 16));
    }
  }
};

/// y [T, 16] (8 of the 16 lanes) (+)= half a strip times tokens t0 .. t0 + T - 1 of a tile of n_tok tokens.
template <class Form, int T>
void half_tile(const uint8_t* strip, int half, const uint8_t* act, int n_tok, int t0, int64_t n_block,
               const TileOut& out) {
  constexpr int kGroups = Form::kGroups, kPart = 8 / kGroups;
  __m256 total[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) total[t] = out.add ? _mm256_loadu_ps(out.y + t * out.row) : _mm256_setzero_ps();
  for (int64_t b = 0; b < n_block; ++b, strip += Form::kBytes, act += kActBlockBytes * n_tok) {
    __m256i codes[8];
    __m256 scale[kGroups], min[kGroups];
    Form::read(strip, half, codes, scale, min);
    for (int i = 0; i < Form::kBytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(strip) + kAhead + i, _MM_HINT_T0);
    const auto* scales = reinterpret_cast<const float*>(act + 32 * n_tok) + t0;
    const auto* starts = reinterpret_cast<const int32_t*>(act + 36 * n_tok) + t0;
    const auto* half_sums = reinterpret_cast<const int16_t*>(act + 40 * n_tok) + 2 * t0;
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const int8_t* a = reinterpret_cast<const int8_t*>(act) + 32 * (t0 + t);
      const __m256 by = _mm256_broadcast_ss(scales + t);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        __m256i dot = Form::dot(codes + kPart * g, a + 4 * kPart * g);
        if constexpr (Form::kStart) dot = _mm256_add_epi32(dot, _mm256_set1_epi32(starts[t]));
        total[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scale[g], by), total[t]);
        if constexpr (Form::kMin) {
          const int32_t sum = kGroups == 1 ? starts[t] : -8 * half_sums[2 * t + g];
          const __m256 sums = _mm256_cvtepi32_ps(_mm256_set1_epi32(sum));
          total[t] = _mm256_fmadd_ps(sums, _mm256_mul_ps(min[g], by), total[t]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) _mm256_storeu_ps(out.y + t * out.row, total[t]);
}

/// Both halves block range by block range, so that the second finds the weights in L1.
template <class Form, int T>
void tile(const uint8_t* strip, const uint8_t* act, int n_tok, int t0, int64_t n_block, const TileOut& out) {
  constexpr int64_t kStep = 16;
  for (int64_t b = 0; b < n_block; b += kStep) {
    const int64_t n = n_block - b < kStep ? n_block - b : kStep;
    const uint8_t* part = strip + b * Form::kBytes;
    const uint8_t* columns = act + b * kActBlockBytes * n_tok;
    const bool add = out.add || b > 0;
    half_tile<Form, T>(part, 0, columns, n_tok, t0, n, {out.y, out.row, add});
    half_tile<Form, T>(part, 1, columns, n_tok, t0, n, {out.y + 8, out.row, add});
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

void matmul_q4_0_act_avx2(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q4>(strip, act, n_tok, n_block, out);
}
void matmul_q8_0_act_avx2(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q8>(strip, act, n_tok, n_block, out);
}
void matmul_wide32_act_avx2(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<WideBlock<1, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_act_avx2(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<WideBlock<2, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide32_min_act_avx2(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                const TileOut& out) {
  tiles<WideBlock<1, true>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_min_act_avx2(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                const TileOut& out) {
  tiles<WideBlock<2, true>>(wide, act, n_tok, n_block, out);
}

}  // namespace onebit::cpu
