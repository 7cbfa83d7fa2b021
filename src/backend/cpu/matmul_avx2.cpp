// Tile kernels on AVX2 (no VNNI): vpmaddubsw multiplies u8 by s8 and adds pairs into saturating 16-bit sums, vpmaddwd
// widens.
//
// Saturation: with unsigned 4- to 5-bit codes (<= 31) and |activation| <= 127, four products of pairs stay below
// 4 * 2 * 31 * 127 = 31,496, and with nibbles (<= 15) eight do: 30,480. Codes around 128 would overflow at once, so
// they are made signed and their sign is moved to the activation: |w| <= 128 gives pairs of at most 32,512.
#include "backend/cpu/matmul.h"
#include "backend/cpu/tiles_256.inl"

namespace onebit::cpu {
namespace {

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

struct Q4 {
  static constexpr int kBytes = kQ4BlockBytes, kGroups = 1;
  static constexpr bool kMin = false;
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
  ONEBIT_INLINE __m256i dot(const __m256i* codes, const int8_t* a, int32_t eighth) {
    return _mm256_add_epi32(dot_small<8>(codes, a), _mm256_set1_epi32(eighth));
  }
};
struct Q8 {
  static constexpr int kBytes = kQ8BlockBytes, kGroups = 1;
  static constexpr bool kMin = false;
  ONEBIT_INLINE void read(const uint8_t* p, int half, __m256i* codes, __m256* scale, __m256*) {
    read_signed(p + kHalfBytes, half, codes);
    scale[0] = halves(p + 16 * half);
  }
  ONEBIT_INLINE __m256i dot(const __m256i* codes, const int8_t* a, int32_t) { return dot_signed<8>(codes, a); }
};
template <int Groups, bool Min>
struct WideBlock {
  static constexpr int kBytes = kCodeBytes + 64 * Groups * (Min ? 2 : 1), kGroups = Groups;
  static constexpr bool kMin = Min;
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
  ONEBIT_INLINE __m256i dot(const __m256i* codes, const int8_t* a, int32_t) {
    if constexpr (!Min) return dot_signed<8 / Groups>(codes, a);
    if constexpr (Min && Groups == 2) return dot_small<4>(codes, a);
    if constexpr (Min && Groups == 1) {
      return _mm256_add_epi32(dot_small<4>(codes, a), dot_small<4>(codes + 4, a + 16));
    }
  }
};

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
