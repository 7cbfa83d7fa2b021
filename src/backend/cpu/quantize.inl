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

void quantize(const float* x, int64_t n_block, bool rotate, bool int4, uint8_t* act, int n_tok, int t) {
  const float low = int4 ? -8.0f : -127.0f, high = int4 ? 7.0f : 127.0f;
  for (int64_t block = 0; block < n_block; ++block, x += kBlock, act += kActBlockBytes * n_tok) {
    Vec a = load(x), b = load(x + 16);
    if (rotate) rotate32(a, b);
    const float amax = largest(max(abs(b), max(abs(a), set(0))));  // max keeps its second operand against NaN
    const bool empty = amax < 0x1p-100f;
    const Vec inverse = set(empty ? 0.0f : high / amax);
    const Vec first = to_codes(a * inverse, low, high), second = to_codes(b * inverse, low, high);
    int8_t* codes = reinterpret_cast<int8_t*>(act) + 32 * t;
    store_s8(first, codes);
    store_s8(second, codes + 16);
    const float scale = empty ? 0.0f : amax / high;
    const int16_t halves[2] = {static_cast<int16_t>(sum(first)), static_cast<int16_t>(sum(second))};
    const int32_t start = -8 * (halves[0] + halves[1]);
    memcpy(act + 32 * n_tok + 4 * t, &scale, 4);
    memcpy(act + 36 * n_tok + 4 * t, &start, 4);
    memcpy(act + 40 * n_tok + 4 * t, halves, 4);
  }
}

}  // namespace
}  // namespace onebit::cpu
