// Tile kernels in plain C++: short rather than fast. Every weight type goes through wide blocks.
#include <cstring>

#include "backend/cpu/layout.h"
#include "backend/cpu/matmul.h"
#include "base/half.h"

namespace onebit::cpu {
namespace {

/// One token's part of an activation block.
struct Token {
  const int8_t* codes;
  float scale;
  int16_t halves[2];
};

Token token_of(const uint8_t* act, int n_tok, int t) {
  Token token;
  token.codes = reinterpret_cast<const int8_t*>(act) + 32 * t;
  std::memcpy(&token.scale, act + 32 * n_tok + 4 * t, 4);
  std::memcpy(token.halves, act + 40 * n_tok + 4 * t, 4);
  return token;
}

/// Integer dot products of 16 rows with columns 4 * first .. 4 * last - 1.
void dot_codes(const uint8_t* codes, const int8_t* a, int first, int last, int32_t* sums) {
  for (int j = first; j < last; ++j) {
    for (int r = 0; r < kLanes; ++r) {
      for (int i = 0; i < 4; ++i) sums[r] += codes[64 * j + 4 * r + i] * a[4 * j + i];
    }
  }
}

void clear_unless_added(const TileOut& out, int n_tok) {
  for (int t = 0; t < n_tok && !out.add; ++t) std::memset(out.y + t * out.row, 0, kLanes * 4);
}

/// `Groups` scales (and minimums) per block of 32 columns; adds to y.
template <int Groups, bool Min>
void add_wide(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  constexpr int kBytes = kCodeBytes + 64 * Groups * (Min ? 2 : 1);
  for (int64_t b = 0; b < n_block; ++b, wide += kBytes, act += kActBlockBytes * n_tok) {
    float factors[4][kLanes];
    std::memcpy(factors, wide + kCodeBytes, kBytes - kCodeBytes);
    for (int t = 0; t < n_tok; ++t) {
      const Token token = token_of(act, n_tok, t);
      for (int g = 0; g < Groups; ++g) {
        const int32_t sum = Groups == 1 ? token.halves[0] + token.halves[1] : token.halves[g];
        int32_t products[kLanes] = {};
        dot_codes(wide, token.codes, 8 / Groups * g, 8 / Groups * (g + 1), products);
        for (int r = 0; r < kLanes; ++r) {
          const int32_t exact = Min ? products[r] : products[r] - kQ8Bias * sum;
          out.y[t * out.row + r] += static_cast<float>(exact) * factors[g][r] * token.scale;
          if (Min) out.y[t * out.row + r] -= static_cast<float>(8 * sum) * factors[Groups + g][r] * token.scale;
        }
      }
    }
  }
}

template <int Groups, bool Min>
void matmul_wide(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block, const TileOut& out) {
  clear_unless_added(out, n_tok);
  add_wide<Groups, Min>(wide, act, n_tok, n_block, out);
}

/// One block of f16 scales and codes -> a wide block.
void widen(const uint8_t* strip, uint8_t* wide) {
  for (int r = 0; r < kLanes; ++r) {
    uint16_t half;
    std::memcpy(&half, strip + 2 * r, 2);
    const float scale = f16_to_f32(half);
    std::memcpy(wide + kCodeBytes + 4 * r, &scale, 4);
  }
}

}  // namespace

void matmul_q4_0_act_portable(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block,
                              const TileOut& out) {
  uint8_t wide[kWideBytesMax];
  clear_unless_added(out, n_tok);
  for (int64_t b = 0; b < n_block; ++b, strip += kQ4BlockBytes, act += kActBlockBytes * n_tok) {
    widen(strip, wide);
    for (int i = 0; i < kCodeBytes / 2; ++i) {
      wide[i] = static_cast<uint8_t>((strip[kHalfBytes + i] & 15) + kQ8Bias - 8);
      wide[kCodeBytes / 2 + i] = static_cast<uint8_t>((strip[kHalfBytes + i] >> 4) + kQ8Bias - 8);
    }
    add_wide<1, false>(wide, act, n_tok, 1, out);
  }
}

void matmul_q8_0_act_portable(const uint8_t* strip, const uint8_t* act, int n_tok, int64_t n_block,
                              const TileOut& out) {
  uint8_t wide[kWideBytesMax];
  clear_unless_added(out, n_tok);
  for (int64_t b = 0; b < n_block; ++b, strip += kQ8BlockBytes, act += kActBlockBytes * n_tok) {
    widen(strip, wide);
    std::memcpy(wide, strip + kHalfBytes, kCodeBytes);
    add_wide<1, false>(wide, act, n_tok, 1, out);
  }
}

void matmul_wide32_act_portable(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                const TileOut& out) {
  matmul_wide<1, false>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_act_portable(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                const TileOut& out) {
  matmul_wide<2, false>(wide, act, n_tok, n_block, out);
}
void matmul_wide32_min_act_portable(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                    const TileOut& out) {
  matmul_wide<1, true>(wide, act, n_tok, n_block, out);
}
void matmul_wide16_min_act_portable(const uint8_t* wide, const uint8_t* act, int n_tok, int64_t n_block,
                                    const TileOut& out) {
  matmul_wide<2, true>(wide, act, n_tok, n_block, out);
}

}  // namespace onebit::cpu
