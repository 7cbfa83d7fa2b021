// Tile kernels on AVX-512 VNNI, where this product's speed comes from.
//
// Per block of 32 columns: 4 loads give 8 vectors of unsigned codes of 16 rows (no shuffles, the strips are interleaved
// for vpdpbusd); per token 8 vpdpbusd whose signed operand is 4 activation codes broadcast from memory, then one
// convert, one multiply of the two scales and one multiply-add. Two vpdpbusd, multiplies or multiply-adds issue per
// cycle on Zen 5, so a block costs at least 5 cycles a token: 102 multiply-adds a cycle, 80 % of the VNNI peak. The
// kernel reaches 85-90.
//
// Trap: the broadcast must stay an operand of vpdpbusd. Written with intrinsics, GCC 12 moves the broadcasts into
// registers of their own and spills accumulators (78 instead of 90), hence the two lines of inline assembly.
// Zero points cost nothing: accumulators start at -8 * (sum of activation codes), which the quantiser stored.
// Strips come from memory at M <= 16 and from L2 later; 4 KB ahead is where software prefetch pays most (M = 8 over
// weights in DRAM: 24.7 GB/s without, 35.3 at 2 KB, 41.8 at 4 KB).
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx512.h"
//
#include "backend/cpu/unpack.inl"

namespace onebit::cpu {
namespace {

/// total += dot products of 4 unsigned codes a lane with the 4 signed codes at `a`, the same for all lanes.
ONEBIT_INLINE __m512i dot4(__m512i total, __m512i codes, const int32_t* a) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(total) : "v"(codes), "m"(*a));
  return total;
}

/// x times the float at `s`.
ONEBIT_INLINE __m512 times(__m512 x, const float* s) {
  __m512 y;
  asm("vmulps %2%{1to16%}, %1, %0" : "=v"(y) : "v"(x), "m"(*s));
  return y;
}

ONEBIT_INLINE __m512 floats(const uint8_t* p) { return _mm512_loadu_ps(p); }
ONEBIT_INLINE __m512 halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ONEBIT_INLINE void load_codes(const uint8_t* p, __m512i* codes) {
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) codes[j] = _mm512_loadu_si512(p + 64 * j);
}

// How a block of each form is read. kZero: what 0 is stored as; 0 when there is a minimum instead. kGroupBlocks blocks
// follow a head of kHeadBytes.
struct SingleBlocks {
  static constexpr int kGroupBlocks = 1, kHeadBytes = 0;
};
struct Q4 : SingleBlocks {
  static constexpr int kBytes = kQ4BlockBytes, kGroups = 1, kZero = 8;
  ONEBIT_INLINE void read(const uint8_t*, const uint8_t* p, __m512i* codes, __m512* scale, __m512*) {
    prefetch_ahead(p, kBytes);
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i x = _mm512_loadu_si512(p + kHalfBytes + 64 * j);
      codes[j] = _mm512_and_si512(x, low);
      codes[j + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
    }
    scale[0] = halves(p);
  }
};
struct Q8 : SingleBlocks {
  static constexpr int kBytes = kQ8BlockBytes, kGroups = 1, kZero = kQ8Bias;
  ONEBIT_INLINE void read(const uint8_t*, const uint8_t* p, __m512i* codes, __m512* scale, __m512*) {
    prefetch_ahead(p, kBytes);
    load_codes(p + kHalfBytes, codes);
    scale[0] = halves(p);
  }
};
template <int Groups, bool Min>
struct WideBlock : SingleBlocks {
  static constexpr int kBytes = kCodeBytes + 64 * Groups * (Min ? 2 : 1), kGroups = Groups, kZero = Min ? 0 : kQ8Bias;
  ONEBIT_INLINE void read(const uint8_t*, const uint8_t* p, __m512i* codes, __m512* scale, __m512* min) {
    load_codes(p, codes);
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      scale[g] = floats(p + kCodeBytes + 64 * g);
      if constexpr (Min) min[g] = floats(p + kCodeBytes + 64 * (Groups + g));
    }
  }
};

/// Other packed forms as they lie in memory: worth it while one tile is all there is, since unpacking once for several
/// tiles is cheaper.
template <Strip F>
struct Packed {
  static constexpr StripShape kShape = kStripShapes[static_cast<int>(F)];
  static constexpr bool kMin = kShape.wide == Wide::by32_min || kShape.wide == Wide::by16_min;
  static constexpr int kGroups = kShape.wide == Wide::by16 || kShape.wide == Wide::by16_min ? 2 : 1;
  static constexpr int kBytes = kShape.block_bytes, kZero = kMin ? 0 : kQ8Bias;
  static constexpr int kGroupBlocks = kShape.group_blocks, kHeadBytes = kShape.head_bytes;
  ONEBIT_INLINE void read(const uint8_t* head, const uint8_t* p, __m512i* codes, __m512* scale, __m512* min) {
    prefetch_ahead(p, kBytes);
    ToRegisters block;
    unpack<F>(head, p, block);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) codes[j] = block.c.v[j].v;
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      scale[g] = block.factors[g].v;
      if constexpr (kMin) min[g] = block.factors[kGroups + g].v;
    }
  }
};

/// By-token words of a block [T], 0 behind them.
template <int T>
ONEBIT_INLINE __m512i by_token(const uint8_t* words) {
  return _mm512_maskz_loadu_epi32(first(T), words);
}

/// -Factor * (sum of activation codes in group g), by token; Factor is a multiple of 8, at most 128.
template <class Form, int T, int Factor>
ONEBIT_INLINE __m512i sums_of(const uint8_t* act, int g) {
  if constexpr (Form::kGroups == 2) {
    const int32_t low = -Factor & 0xffff, high = low << 16;
    return _mm512_madd_epi16(by_token<T>(act + 40 * T), _mm512_set1_epi32(g == 0 ? low : high));
  }
  const __m512i eight = by_token<T>(act + 36 * T);
  return Factor == 8 ? eight : _mm512_slli_epi32(eight, 4);
}

/// What does not depend on the weights, by token: where the integer sums of a group start, and the factor of an eighth
/// of its minimum.
template <class Form, int T>
struct Offsets {
  static_assert(Form::kZero == 0 || Form::kZero == 8 || Form::kZero == 128);
  alignas(64) int32_t start[Form::kGroups][16];
  alignas(64) float min_factor[Form::kGroups][16];

  ONEBIT_INLINE void read(const uint8_t* act, Offsets& to) {
#pragma GCC unroll 2
    for (int g = 0; g < Form::kGroups; ++g) {
      if constexpr (Form::kZero > 0) {
        _mm512_store_si512(to.start[g], sums_of<Form, T, Form::kZero>(act, g));
      } else {
        const __m512 scales = _mm512_castsi512_ps(by_token<T>(act + 32 * T));
        _mm512_store_ps(to.min_factor[g], _mm512_mul_ps(_mm512_cvtepi32_ps(sums_of<Form, T, 8>(act, g)), scales));
      }
    }
  }
};

/// y [T, 16] (+)= strip times tile. T accumulators, 8 codes and a few temporaries fill the 32 registers at T = 16.
template <class Form, int T>
void tile(const uint8_t* __restrict strip, const uint8_t* __restrict act, int64_t n_block, const TileOut& out) {
  constexpr int kGroups = Form::kGroups, kPart = 8 / kGroups;
  __m512 total[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) total[t] = out.add ? _mm512_loadu_ps(out.y + t * out.row) : _mm512_setzero_ps();
  const uint8_t* head = strip;
  for (int64_t b = 0; b < n_block; ++b, strip += Form::kBytes, act += kActBlockBytes * T) {
    if (Form::kGroupBlocks > 1 && b % Form::kGroupBlocks == 0) {
      head = strip;
      strip += Form::kHeadBytes;
    }
    __m512i codes[8];
    __m512 scale[kGroups], min[kGroups];
    Form::read(head, strip, codes, scale, min);
    const auto* scales = reinterpret_cast<const float*>(act + 32 * T);
    // Q4_0 finds its starts as they are.
    constexpr bool kStored = kGroups == 1 && Form::kZero == 8;
    Offsets<Form, T> offsets;
    if constexpr (!kStored) Offsets<Form, T>::read(act, offsets);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const auto* a = reinterpret_cast<const int32_t*>(act + 32 * t);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        __m512i dot = _mm512_setzero_si512();
        if constexpr (kStored) dot = _mm512_set1_epi32(reinterpret_cast<const int32_t*>(act + 36 * T)[t]);
        if constexpr (!kStored && Form::kZero > 0) dot = _mm512_set1_epi32(offsets.start[g][t]);
#pragma GCC unroll 8
        for (int j = kPart * g; j < kPart * (g + 1); ++j) dot = dot4(dot, codes[j], a + j);
        total[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), times(scale[g], scales + t), total[t]);
        if constexpr (Form::kZero == 0) {
          total[t] = _mm512_fmadd_ps(min[g], _mm512_set1_ps(offsets.min_factor[g][t]), total[t]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) _mm512_storeu_ps(out.y + t * out.row, total[t]);
}

template <class Form>
void tiles(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  using Fn = void (*)(const uint8_t*, const uint8_t*, int64_t, const TileOut&);
  static constexpr Fn kByTokens[kTileTokens] = {tile<Form, 1>,  tile<Form, 2>,  tile<Form, 3>,  tile<Form, 4>,
                                                tile<Form, 5>,  tile<Form, 6>,  tile<Form, 7>,  tile<Form, 8>,
                                                tile<Form, 9>,  tile<Form, 10>, tile<Form, 11>, tile<Form, 12>,
                                                tile<Form, 13>, tile<Form, 14>, tile<Form, 15>, tile<Form, 16>};
  kByTokens[n_tok - 1](strip, act, n_block, out);
}

}  // namespace

void matmul_q4_0_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q4>(strip, act, n_tok, n_block, out);
}
void matmul_q8_0_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Q8>(strip, act, n_tok, n_block, out);
}
void matmul_wide32_act_avx512(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<WideBlock<1, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_act_avx512(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<WideBlock<2, false>>(wide, act, n_tok, n_block, out);
}
void matmul_wide32_min_act_avx512(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                  const TileOut& out) {
  tiles<WideBlock<1, true>>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_min_act_avx512(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                  const TileOut& out) {
  tiles<WideBlock<2, true>>(wide, act, n_tok, n_block, out);
}

void matmul_q4_k_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Packed<Strip::q4_k>>(strip, act, n_tok, n_block, out);
}
void matmul_q5_k_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Packed<Strip::q5_k>>(strip, act, n_tok, n_block, out);
}
void matmul_q6_k_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  tiles<Packed<Strip::q6_k>>(strip, act, n_tok, n_block, out);
}
void matmul_iq4_xs_act_avx512(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block,
                              const TileOut& out) {
  tiles<Packed<Strip::iq4_xs>>(strip, act, n_tok, n_block, out);
}

}  // namespace onebit::cpu
