// Tile kernels on AMX, for prompts and for batches of more than a few rows: wide blocks with signed codes, and strips
// that are unpacked to such blocks while they are multiplied.
//
// Tiles of activations and wide blocks (layout.h) are operands of tdpbssd as they lie in memory: [16 tokens][32 codes]
// and [8][16 rows x 4 codes]. One instruction makes the 16 x 16 exact sums of a block, which go through L1 to the
// vector units, where each token costs one convert, one multiply of the two scales and one multiply-add, in the same
// order as in matmul_avx512.cpp, so that both give the same bits. The sums of the next block are on their way
// meanwhile, and with strips the codes of the one after it.
//
// On Sapphire Rapids tdpbssd takes 16 cycles and storing its sums 14 more, whatever the shape. While tile instructions
// are under way only one of the two 512-bit units takes float operations (48 multiply-adds: 24 cycles alone, 48 beside
// one tdpbssd; integer additions are not affected), so the 48 of a block of 16 tokens take 48 cycles: that is the
// bound. vpdpbusd takes 88. Tiles of fewer tokens are multiplied as if they had 16 rows, since changing the shapes
// takes 200 cycles; what lies behind them gives sums that nobody reads.
#include <utility>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/vec_avx512.h"
//
#include "backend/cpu/unpack.inl"

namespace onebit::cpu {
namespace {

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

/// Where blocks come from: wide blocks as they lie in memory...
template <Wide Kind>
struct WideBlocks {
  static constexpr Wide kKind = Kind;
  const uint8_t* wide;

  explicit WideBlocks(const uint8_t* p) : wide(p) {}
  __attribute__((always_inline)) void prepare(int64_t) {}
  __attribute__((always_inline)) const uint8_t* operator[](int64_t b) const {
    return wide + b * kWideBytes[static_cast<int>(Kind)];
  }
};

/// ... or those of a packed strip. Unpacked one block before they are multiplied, because no tile is loaded from stores
/// that haven't reached L1, and not earlier, so that memory, vector and tile units are all busy.
template <Strip F>
struct PackedBlocks {
  static constexpr StripShape kShape = kStripShapes[static_cast<int>(F)];
  static constexpr Wide kKind = kShape.wide;
  static constexpr int kRing = 4;  // at least the three from the one being prepared to the one being added
  const uint8_t *strip, *head;
  alignas(64) uint8_t ring[kRing][kWideBytes[static_cast<int>(kKind)]];

  explicit PackedBlocks(const uint8_t* p) : strip(p), head(p) {}
  __attribute__((always_inline)) void prepare(int64_t b) {
    if (b % kShape.group_blocks == 0) {
      head = strip;
      strip += kShape.head_bytes;
    }
    prefetch_ahead(strip, kShape.block_bytes);
    const ToMemory<0> to{ring[b % kRing]};
    unpack<F>(head, strip, to);
    strip += kShape.block_bytes;
    asm volatile("" ::: "memory");  // trap: the intrinsics that load tiles don't say that they read memory
  }
  __attribute__((always_inline)) const uint8_t* operator[](int64_t b) const { return ring[b % kRing]; }
};

/// y [T, 16] (+)= blocks times tile.
template <class Blocks, int T>
void tile(const uint8_t* p, const uint8_t* __restrict act, int64_t n_block, const TileOut& out) {
  constexpr bool kMin = Blocks::kKind == Wide::by32_min || Blocks::kKind == Wide::by16_min;
  constexpr int kGroups = Blocks::kKind == Wide::by16 || Blocks::kKind == Wide::by16_min ? 2 : 1;
  constexpr int kActBytes = kActBlockBytes * T;
  Blocks blocks(p);
  alignas(64) int32_t sums[2][kGroups * 256];
  alignas(64) float factors[16];
  __m512 total[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) total[t] = out.add ? _mm512_loadu_ps(out.y + t * out.row) : _mm512_setzero_ps();
  blocks.prepare(0);
  if (n_block > 1) blocks.prepare(1);
  multiply_block<kGroups>(blocks[0], act, sums[0]);
  for (int64_t b = 0; b < n_block; ++b, act += kActBytes) {
    if (b + 2 < n_block) blocks.prepare(b + 2);
    if (b + 1 < n_block) multiply_block<kGroups>(blocks[b + 1], act + kActBytes, sums[(b + 1) % 2]);
    const uint8_t* wide = blocks[b];
    const auto* scales = reinterpret_cast<const float*>(act + 32 * T);
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      const __m512 scale = _mm512_loadu_ps(wide + kCodeBytes + 64 * g);
      const int32_t* dots = sums[b % 2] + 256 * g;
      if constexpr (kMin) scaled_sums<kGroups, T>(act, g, factors);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots + 16 * t));
        total[t] = _mm512_fmadd_ps(dot, times(scale, scales + t), total[t]);
        if constexpr (kMin) {
          const __m512 min = _mm512_loadu_ps(wide + kCodeBytes + 64 * (kGroups + g));
          total[t] = _mm512_fmadd_ps(min, _mm512_set1_ps(factors[t]), total[t]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) _mm512_storeu_ps(out.y + t * out.row, total[t]);
}

/// By the number of tokens, at least Least.
template <class Blocks, int Least>
void tiles(const uint8_t* p, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    using Fn = void (*)(const uint8_t*, const uint8_t*, int64_t, const TileOut&);
    static constexpr Fn kByTokens[] = {tile<Blocks, Least + i>...};
    kByTokens[n_tok - Least](p, act, n_block, out);
  }
  (std::make_integer_sequence<int, kTileTokens - Least + 1>());
}

}  // namespace

void enter_amx() {
  static constexpr TileShapes kShapes;  // trap: of a local one GCC 12 stores only the first 8 bytes
  _tile_loadconfig(&kShapes);
}
void leave_amx() { _tile_release(); }

#define ONEBIT_WIDE(name, kind)                                                                     \
  void matmul_##name##_act_amx(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, \
                               const TileOut& out) {                                                \
    tiles<WideBlocks<Wide::kind>, 1>(wide, act, n_tok, n_block, out);                               \
  }
ONEBIT_WIDE(wide32, by32)
ONEBIT_WIDE(wide16, by16)
ONEBIT_WIDE(wide32_min, by32_min)
ONEBIT_WIDE(wide16_min, by16_min)
#undef ONEBIT_WIDE

#define ONEBIT_PACKED(form)                                                                          \
  void matmul_##form##_act_amx(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block, \
                               const TileOut& out) {                                                 \
    if (n_tok < kLeastAmxTokens) return matmul_##form##_act_avx512(strip, act, n_tok, n_block, out); \
    tiles<PackedBlocks<Strip::form>, kLeastAmxTokens>(strip, act, n_tok, n_block, out);              \
  }
ONEBIT_PACKED(q4_0)
ONEBIT_PACKED(q8_0)
ONEBIT_PACKED(q4_k)
ONEBIT_PACKED(q5_k)
ONEBIT_PACKED(q6_k)
ONEBIT_PACKED(iq4_xs)
#undef ONEBIT_PACKED

}  // namespace onebit::cpu
