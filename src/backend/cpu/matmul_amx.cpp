// Tile kernels on AMX: wide blocks with signed codes, for prompts and for batches of more than a few rows.
//
// Tiles of activations and wide blocks (layout.h) are operands of tdpbssd as they lie in memory: [16 tokens][32 codes]
// and [8][16 rows x 4 codes]. One instruction makes the 16 x 16 exact sums of a block, which go through L1 to the
// vector units, where each token costs one convert, one multiply of the two scales and one multiply-add, in the same
// order as in matmul_avx512.cpp, so that both give the same bits. The sums of the next block are on their way
// meanwhile.
//
// On Sapphire Rapids tdpbssd takes 16 cycles and storing its sums 14 more, whatever the shape; a block costs about 28
// cycles for 16 tokens instead of 88 with vpdpbusd. Tiles of fewer tokens are multiplied as if they had 16 rows, since
// that takes hardly longer and changing the shapes takes 200 cycles; what lies behind them gives sums that nobody
// reads.
#include <immintrin.h>
#include <stdint.h>

#include "backend/cpu/layout.h"
#include "backend/cpu/matmul.h"

namespace onebit::cpu {
namespace {

#define ONEBIT_INLINE __attribute__((always_inline)) static inline

/// Operand of ldtilecfg. Tile registers 0, 1: sums; 2: activations, 3: of half a block; 4: codes, 5: of half a block.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, kBlock, kBlock / 2, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 8, 4};
};

/// Exact sums [groups][16 tokens][16 rows] of one block.
template <int Groups>
ONEBIT_INLINE void multiply_block(const uint8_t* wide, const uint8_t* act, int32_t* sums) {
  _tile_zero(0);
  if constexpr (Groups == 1) {
    _tile_loadd(2, act, kBlock);
    _tile_loadd(4, wide, 64);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, sums, 64);
  } else {
    _tile_loadd(3, act, kBlock);
    _tile_loadd(5, wide, 64);
    _tile_dpbssd(0, 3, 5);
    _tile_stored(0, sums, 64);
    _tile_zero(1);
    _tile_loadd(3, act + kBlock / 2, kBlock);
    _tile_loadd(5, wide + kCodeBytes / 2, 64);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(1, sums + 256, 64);
  }
}

/// x times the float at `s`.
ONEBIT_INLINE __m512 times(__m512 x, const float* s) {
  __m512 y;
  asm("vmulps %2%{1to16%}, %1, %0" : "=v"(y) : "v"(x), "m"(*s));
  return y;
}

/// Scale times -8 * (sum of codes in group g), of every token: the factors of eighths of minimums.
template <int Groups, int T>
ONEBIT_INLINE void scaled_sums(const uint8_t* act, int g, float* to) {
  constexpr __mmask16 kTokens = static_cast<__mmask16>((1u << T) - 1);
  __m512i sums;
  if constexpr (Groups == 1) {
    sums = _mm512_maskz_loadu_epi32(kTokens, act + 36 * T);
  } else {
    const int32_t first = -8 & 0xffff, second = first << 16;
    sums = _mm512_madd_epi16(_mm512_maskz_loadu_epi32(kTokens, act + 40 * T), _mm512_set1_epi32(g ? second : first));
  }
  _mm512_store_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_maskz_loadu_ps(kTokens, act + 32 * T)));
}

/// y [T, 16] (+)= wide blocks times tile.
template <int Groups, bool Min, int T>
void tile(const uint8_t* __restrict wide, const uint8_t* __restrict act, int64_t n_block, const TileOut& out) {
  constexpr int kBytes = kCodeBytes + 64 * Groups * (Min ? 2 : 1), kActBytes = kActBlockBytes * T;
  alignas(64) int32_t sums[2][Groups * 256];
  alignas(64) float factors[16];
  __m512 total[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) total[t] = out.add ? _mm512_loadu_ps(out.y + t * out.row) : _mm512_setzero_ps();
  multiply_block<Groups>(wide, act, sums[0]);
  for (int64_t b = 0; b < n_block; ++b, wide += kBytes, act += kActBytes) {
    if (b + 1 < n_block) multiply_block<Groups>(wide + kBytes, act + kActBytes, sums[(b + 1) % 2]);
    const auto* scales = reinterpret_cast<const float*>(act + 32 * T);
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      const __m512 scale = _mm512_loadu_ps(wide + kCodeBytes + 64 * g);
      const int32_t* dots = sums[b % 2] + 256 * g;
      if constexpr (Min) scaled_sums<Groups, T>(act, g, factors);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots + 16 * t));
        total[t] = _mm512_fmadd_ps(dot, times(scale, scales + t), total[t]);
        if constexpr (Min) {
          const __m512 min = _mm512_loadu_ps(wide + kCodeBytes + 64 * (Groups + g));
          total[t] = _mm512_fmadd_ps(min, _mm512_set1_ps(factors[t]), total[t]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) _mm512_storeu_ps(out.y + t * out.row, total[t]);
}

template <int Groups, bool Min>
void tiles(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  using Fn = void (*)(const uint8_t*, const uint8_t*, int64_t, const TileOut&);
  static constexpr Fn kByTokens[kTileTokens] = {
      tile<Groups, Min, 1>,  tile<Groups, Min, 2>,  tile<Groups, Min, 3>,  tile<Groups, Min, 4>,
      tile<Groups, Min, 5>,  tile<Groups, Min, 6>,  tile<Groups, Min, 7>,  tile<Groups, Min, 8>,
      tile<Groups, Min, 9>,  tile<Groups, Min, 10>, tile<Groups, Min, 11>, tile<Groups, Min, 12>,
      tile<Groups, Min, 13>, tile<Groups, Min, 14>, tile<Groups, Min, 15>, tile<Groups, Min, 16>};
  kByTokens[n_tok - 1](wide, act, n_block, out);
}

}  // namespace

void enter_amx() {
  static constexpr TileShapes kShapes;  // trap: of a local one GCC 12 stores only the first 8 bytes
  _tile_loadconfig(&kShapes);
}
void leave_amx() { _tile_release(); }

void matmul_wide32_act_amx(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<1, false>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_act_amx(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<2, false>(wide, act, n_tok, n_block, out);
}
void matmul_wide32_min_act_amx(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                               const TileOut& out) {
  tiles<1, true>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_min_act_amx(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                               const TileOut& out) {
  tiles<2, true>(wide, act, n_tok, n_block, out);
}

}  // namespace onebit::cpu
