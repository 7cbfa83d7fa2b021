// Tile kernels on AVX2 with AVX-VNNI, for processors that have vpdpbusd but no AVX-512. As in matmul_avx512.cpp codes
// stay unsigned, and sums start at what their zero point adds.
#include "backend/cpu/matmul.h"
#include "backend/cpu/tiles_256.inl"

namespace onebit::cpu {
namespace {

/// total += dot products of N vectors of unsigned codes with the signed codes at `a`.
template <int N>
ONEBIT_INLINE __m256i dot_unsigned(__m256i total, const __m256i* codes, const int8_t* a) {
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j) {
    int32_t four;
    memcpy(&four, a + 4 * j, 4);
    total = _mm256_dpbusd_avx_epi32(total, codes[j], _mm256_set1_epi32(four));
  }
  return total;
}

/// kZero: what 0 is stored as; 0 when there is a minimum instead.
template <int Groups, int Zero>
struct Unsigned {
  static constexpr int kGroups = Groups;
  static constexpr bool kMin = Zero == 0;
  ONEBIT_INLINE __m256i dot(const __m256i* codes, const int8_t* a, int32_t eighth) {
    return dot_unsigned<8 / Groups>(_mm256_set1_epi32(eighth * (Zero / 8)), codes, a);
  }
};
struct Q4 : Unsigned<1, 8> {
  static constexpr int kBytes = kQ4BlockBytes;
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
};
struct Q8 : Unsigned<1, kQ8Bias> {
  static constexpr int kBytes = kQ8BlockBytes;
  ONEBIT_INLINE void read(const uint8_t* p, int half, __m256i* codes, __m256* scale, __m256*) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) codes[j] = load32(p + kHalfBytes + 64 * j + 32 * half);
    scale[0] = halves(p + 16 * half);
  }
};
template <int Groups, bool Min>
struct WideBlock : Unsigned<Groups, Min ? 0 : kQ8Bias> {
  static constexpr int kBytes = kCodeBytes + 64 * Groups * (Min ? 2 : 1);
  ONEBIT_INLINE void read(const uint8_t* p, int half, __m256i* codes, __m256* scale, __m256* min) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) codes[j] = load32(p + 64 * j + 32 * half);
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      scale[g] = floats(p + kCodeBytes + 64 * g + 32 * half);
      if constexpr (Min) min[g] = floats(p + kCodeBytes + 64 * (Groups + g) + 32 * half);
    }
  }
};

}  // namespace

void matmul_q4_0_act_avxvnni(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q4>(strip, act, n_tok, n_block, out);
}
void matmul_q8_0_act_avxvnni(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q8>(strip, act, n_tok, n_block, out);
}
void matmul_wide32_act_avxvnni(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                               const TileOut& out) {
  tiles<WideBlock<1, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_act_avxvnni(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                               const TileOut& out) {
  tiles<WideBlock<2, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide32_min_act_avxvnni(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                   const TileOut& out) {
  tiles<WideBlock<1, true>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_min_act_avxvnni(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                   const TileOut& out) {
  tiles<WideBlock<2, true>>(wide, act, n_tok, n_block, out);
}

}  // namespace onebit::cpu
