// f32 rows -> activation tiles (layout.h): rotation, scale, codes and sums of 32 columns at a time, bit for bit what
// plan/op.h defines. Written over Vec; included by kernels_*.cpp after its vec_*.h.
#pragma once

namespace onebit::cpu {
namespace {

/// The 32-point Walsh-Hadamard transform of (a, b), butterflies in the order that gguf/hadamard.h fixes.
ONEBIT_INLINE void rotate32(Vec& a, Vec& b) {
  a = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(a))));
  b = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(b))));
  const Vec norm = set(0.17677669529663687f);
  const Vec low = (a + b) * norm;
  b = (a - b) * norm;
  a = low;
}

/// Nearest whole number, away from zero on ties, in [low, high]; NaN gives 0. Adding 0.5 before truncating would be
/// wrong just below a half, so the rest after truncation decides, which is exact.
ONEBIT_INLINE Vec to_codes(Vec x, float low, float high) {
  const Vec whole = truncate(x), rest = x - whole, zero = set(0);
  Vec code = whole + where_less(rest, set(0.5f), zero, set(1.0f));
  code = code - where_less(set(-0.5f), rest, zero, set(1.0f));
  code = min(set(high), max(set(low), code));
  return where_less(abs(x), set(__builtin_inff()), code,
                    where_less(zero, x, set(high), where_less(x, zero, set(low), zero)));
}

/// Nearest whole number, even on ties, in [-8, 7]; x is finite.
ONEBIT_INLINE Vec to_signed_codes(Vec x) { return min(set(7.0f), max(set(-8.0f), round_even(x))); }

/// Codes, scale and sums of one block to their places.
ONEBIT_INLINE void put_block(Vec first, Vec second, float scale, uint8_t* act, int n_tok, int t) {
  int8_t* codes = reinterpret_cast<int8_t*>(act) + 32 * t;
  store_s8(first, codes);
  store_s8(second, codes + 16);
  const int16_t halves[2] = {static_cast<int16_t>(sum(first)), static_cast<int16_t>(sum(second))};
  const int32_t start = -8 * (halves[0] + halves[1]);
  memcpy(act + 32 * n_tok + 4 * t, &scale, 4);
  memcpy(act + 36 * n_tok + 4 * t, &start, 4);
  memcpy(act + 40 * n_tok + 4 * t, halves, 4);
}

/// The rules that scale the largest magnitude to `high`.
void quantize_amax(const float* x, int64_t n_block, bool rotate, float low, float high, uint8_t* act, int n_tok,
                   int t) {
  for (int64_t block = 0; block < n_block; ++block, x += kBlock, act += kActBlockBytes * n_tok) {
    Vec a = load(x), b = load(x + 16);
    if (rotate) rotate32(a, b);
    const float amax = largest(max(abs(b), max(abs(a), set(0))));  // max keeps its second operand against NaN
    const bool empty = amax < 0x1p-100f;
    const Vec inverse = set(empty ? 0.0f : high / amax);
    put_block(to_codes(a * inverse, low, high), to_codes(b * inverse, low, high), empty ? 0.0f : amax / high, act,
              n_tok, t);
  }
}

/// What 16 blocks, one in each lane, are coded with: code = nearest(x * unit * step).
struct BlockSteps {
  Vec unit, step, scale;
};

/// x [32]: element i of the 16 blocks in vector i, all finite.
ONEBIT_INLINE BlockSteps choose_steps(const Vec* x, bool search) {
  Vec amax = set(0), extreme = set(0);
  for (int i = 0; i < kBlock; ++i) {
    extreme = where_less(amax, abs(x[i]), x[i], extreme);
    amax = max(amax, abs(x[i]));
  }
  const Vec tiny = set(0x1p-100f), zero = set(0), unit = set(-1.0f) / extreme;
  BlockSteps best{where_less(amax, tiny, zero, unit), set(8), where_less(amax, tiny, zero, extreme / set(-8.0f))};
  if (!search) return best;
  constexpr float kSteps[4] = {7, 7.5f, 8, 8.7f};
  Vec uq[4] = {zero, zero, zero, zero}, qq[4] = {zero, zero, zero, zero};
  for (int i = 0; i < kBlock; ++i) {
    const Vec u = x[i] * best.unit;
    for (int c = 0; c < 4; ++c) {
      const Vec q = to_signed_codes(u * set(kSteps[c]));
      uq[c] = uq[c] + u * q;
      qq[c] = qq[c] + q * q;
    }
  }
  Vec best_gain = set(-1.0f), ratio = zero;
  for (int c = 0; c < 4; ++c) {
    const Vec gain = uq[c] * uq[c] / qq[c];
    best.step = where_less(best_gain, gain, set(kSteps[c]), best.step);
    ratio = where_less(best_gain, gain, uq[c] / qq[c], ratio);
    best_gain = where_less(best_gain, gain, gain, best_gain);
  }
  best.scale = where_less(amax, tiny, zero, zero - extreme * ratio);
  return best;
}

/// The rules that put the signed extreme on the longer side, 16 blocks at a time.
void quantize_extreme(const float* x, int64_t n_block, bool rotate, bool search, uint8_t* act, int n_tok, int t) {
  const Vec infinity = set(__builtin_inff()), zero = set(0);
  for (int64_t first = 0; first < n_block; first += 16) {
    const int n = n_block - first < 16 ? static_cast<int>(n_block - first) : 16;
    Vec rows[2][16], columns[kBlock];
    bool infinite[16] = {};
    for (int r = 0; r < 16; ++r) {
      Vec a = zero, b = zero;
      if (r < n) {
        a = load(x + r * kBlock);
        b = load(x + r * kBlock + 16);
        if (rotate) rotate32(a, b);
        infinite[r] = largest(max(abs(b), max(abs(a), zero))) == __builtin_inff();
        a = where_less(abs(a), infinity, a, zero);
        b = where_less(abs(b), infinity, b, zero);
      }
      rows[0][r] = columns[r] = a;
      rows[1][r] = columns[16 + r] = b;
    }
    transpose(columns);
    transpose(columns + 16);
    const BlockSteps steps = choose_steps(columns, search);
    float unit[16], step[16], scale[16];
    store(steps.unit, unit);
    store(steps.step, step);
    store(steps.scale, scale);
    for (int r = 0; r < n; ++r, x += kBlock, act += kActBlockBytes * n_tok) {
      const Vec u = set(infinite[r] ? 0.0f : unit[r]), c = set(step[r]);
      put_block(to_signed_codes(rows[0][r] * u * c), to_signed_codes(rows[1][r] * u * c),
                infinite[r] ? __builtin_inff() : scale[r], act, n_tok, t);
    }
  }
}

void quantize(const float* x, int64_t n_block, bool rotate, ActGrid grid, uint8_t* act, int n_tok, int t) {
  if (grid == ActGrid::int8) return quantize_amax(x, n_block, rotate, -127, 127, act, n_tok, t);
  if (grid == ActGrid::int4_amax) return quantize_amax(x, n_block, rotate, -8, 7, act, n_tok, t);
  quantize_extreme(x, n_block, rotate, grid == ActGrid::int4_search, act, n_tok, t);
}

}  // namespace
}  // namespace onebit::cpu
