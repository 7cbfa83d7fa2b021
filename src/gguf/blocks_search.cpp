// Encoders that look for the scale of least squared error: Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K. One block at a
// time: the definition of what blocks_search_lanes.cpp does for many at once.
// All work the same way: try a few step sizes around the one that spans the block, round, refit the scale by least
// squares, keep the best; scales that are themselves quantised are then adjusted by comparing their neighbours.
#include <algorithm>
#include <array>
#include <cmath>

#include "gguf/block_codecs.h"
#include "gguf/k_scales.h"
#include "gguf/packing.h"

namespace onebit::codec {
namespace {

/// Nearest integer (halves to even) in [low, high] as a float; NaN gives low. Cheap enough for the search loops.
inline float nearest(float value, float low, float high) {
  constexpr float kShift = 0x1.8p23f;  // adding it leaves no room for a fraction
  const float clamped = !(value > low) ? low : (value < high ? value : high);
  return (clamped + kShift) - kShift;
}

/// Sum over n elements (a multiple of 8) in eight interleaved partial sums, so that it maps to vector registers.
template <typename Term>
float sum_lanes(int n, Term term) {
  float lane[8] = {};
  for (int i = 0; i < n; i += 8) {
    for (int l = 0; l < 8; ++l) lane[l] += term(i + l);
  }
  return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

float signed_extreme(const float* x, int n) {
  float amax = 0, extreme = 0;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > amax) {
      amax = std::fabs(x[i]);
      extreme = x[i];
    }
  }
  return extreme;
}

float round_to_half(float value) { return f16_to_f32(f32_to_f16(value)); }

/// Weights of the elements of consecutive blocks; all alike without any.
class Weights {
 public:
  Weights(const float* weights, int64_t block) : weights_(weights), block_(block) {}
  const float* at(int64_t b) const { return weights_ ? weights_ + b * block_ : kOnes.data(); }

 private:
  static constexpr std::array<float, 256> kOnes = [] {
    std::array<float, 256> ones{};
    for (float& one : ones) one = 1;
    return ones;
  }();
  const float* weights_;
  int64_t block_;
};

/// Squared error of coding x with y = scale q - offset, q the nearest code in [low, high]; `codes` receives the q.
float code_with(const float* x, const float* w, int n, float scale, float offset, float low, float high, float* codes) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  for (int i = 0; i < n; ++i) codes[i] = nearest((x[i] + offset) * inverse, low, high);
  return sum_lanes(n, [&](int i) {
    const float error = x[i] - (scale * codes[i] - offset);
    return w[i] * (error * error);
  });
}

/// The scale of y = scale q, q in [low, high], with the least squared error among a few step sizes.
float fit_symmetric(const float* x, const float* w, int n, float low, float high) {
  const float extreme = signed_extreme(x, n);
  if (extreme == 0) return 0;
  float best_scale = 0, best_gain = 0, codes[32];
  for (int step = -9; step <= 9; ++step) {
    // The extreme may take the longer side of the range or, for the last few, the shorter one.
    const float target = step <= 5 ? low - 0.1f * static_cast<float>(step) : high + 0.2f * static_cast<float>(step - 7);
    const float inverse = target / extreme;
    for (int i = 0; i < n; ++i) codes[i] = nearest(x[i] * inverse, low, high);
    const float xq = sum_lanes(n, [&](int i) { return w[i] * (x[i] * codes[i]); });
    const float qq = sum_lanes(n, [&](int i) { return w[i] * (codes[i] * codes[i]); });
    // With the least-squares scale xq / qq the error is sum(x^2) - xq^2 / qq.
    if (qq > 0 && xq * xq > best_gain * qq) {
      best_gain = xq * xq / qq;
      best_scale = xq / qq;
    }
  }
  return best_scale;
}

struct ScaleOffset {
  float scale = 0, offset = 0;
};

/// The pair of y = scale q - offset, q in [0, high], scale >= 0, with the least squared error among a few step sizes.
/// n = 32. `any_offset`: else it is >= 0, and zero is among the values.
ScaleOffset fit_affine(const float* x, const float* w, float high, bool any_offset) {
  constexpr int kN = 32;
  float lowest = *std::min_element(x, x + kN), highest = *std::max_element(x, x + kN);
  if (!any_offset) lowest = std::min(lowest, 0.0f);
  if (!any_offset) highest = std::max(highest, 0.0f);
  const float range = highest - lowest;
  if (!(range > 0)) return {0, -lowest};
  ScaleOffset best{range / high, -lowest};
  float codes[kN];
  float best_error = code_with(x, w, kN, best.scale, best.offset, 0, high, codes);
  const float sw = sum_lanes(kN, [&](int i) { return w[i]; });
  const float sx = sum_lanes(kN, [&](int i) { return w[i] * x[i]; });
  for (int step = -10; step <= 10; ++step) {
    const float inverse = (high + 0.1f * static_cast<float>(step)) / range;
    for (int i = 0; i < kN; ++i) codes[i] = nearest((x[i] - lowest) * inverse, 0, high);
    const float sq = sum_lanes(kN, [&](int i) { return w[i] * codes[i]; });
    const float sqq = sum_lanes(kN, [&](int i) { return w[i] * (codes[i] * codes[i]); });
    const float sxq = sum_lanes(kN, [&](int i) { return w[i] * (x[i] * codes[i]); });
    const float determinant = sw * sqq - sq * sq;
    if (!(determinant > 0)) continue;
    ScaleOffset fit{(sw * sxq - sx * sq) / determinant, (sq * sxq - sx * sqq) / determinant};
    if (fit.offset < 0 && !any_offset) fit = {sxq / sqq, 0};
    if (!(fit.scale > 0)) continue;
    const float error = code_with(x, w, kN, fit.scale, fit.offset, 0, high, codes);
    if (error < best_error) {
      best_error = error;
      best = fit;
    }
  }
  return best;
}

/// What Q4_K and Q5_K have in common: scales of a super-block and the codes of its 256 elements.
struct AffineSuperBlock {
  float d, dmin;  // representable in f16
  ScaleMin scales[8];
  float codes[256];
};

void encode_affine(const float* x, const float* w, float high, AffineSuperBlock& out) {
  ScaleOffset fits[8];
  float largest_scale = 0, largest_offset = 0;
  for (int s = 0; s < 8; ++s) {
    fits[s] = fit_affine(x + 32 * s, w + 32 * s, high, false);
    largest_scale = std::max(largest_scale, fits[s].scale);
    largest_offset = std::max(largest_offset, fits[s].offset);
  }
  out.d = round_to_half(largest_scale / 63);
  out.dmin = round_to_half(largest_offset / 63);
  for (int s = 0; s < 8; ++s) {
    const int scale = out.d > 0 ? round_to_int(fits[s].scale / out.d, 0, 63) : 0;
    const int min = out.dmin > 0 ? round_to_int(fits[s].offset / out.dmin, 0, 63) : 0;
    float best_error = INFINITY, codes[32];
    for (int candidate = 0; candidate < 9; ++candidate) {
      const ScaleMin trial{std::clamp(scale + candidate % 3 - 1, 0, 63), std::clamp(min + candidate / 3 - 1, 0, 63)};
      const float error = code_with(x + 32 * s, w + 32 * s, 32, out.d * static_cast<float>(trial.scale),
                                    out.dmin * static_cast<float>(trial.min), 0, high, codes);
      if (error < best_error || candidate == 0) {
        best_error = error;
        out.scales[s] = trial;
        std::copy(codes, codes + 32, out.codes + 32 * s);
      }
    }
  }
}

void to_codes(const float* codes, int shift, int* out) {
  for (int j = 0; j < 32; ++j) out[j] = static_cast<int>(codes[j]) + shift;
}

/// y = d q, q in [-half, half). Whether `codes` [32] and d are better.
bool better_symmetric(const float* x, const float* w, int half, float plain_error, float& d, int* codes) {
  const auto low = static_cast<float>(-half), high = static_cast<float>(half - 1);
  float found[32];
  d = round_to_half(fit_symmetric(x, w, 32, low, high));
  if (!(code_with(x, w, 32, d, 0, low, high, found) < plain_error)) return false;
  to_codes(found, half, codes);
  return true;
}

/// y = d q + m, q in [0, high].
bool better_affine(const float* x, const float* w, int high, float plain_error, float& d, float& m, int* codes) {
  const ScaleOffset fit = fit_affine(x, w, static_cast<float>(high), true);
  float found[32];
  d = round_to_half(fit.scale);
  m = round_to_half(-fit.offset);
  if (!(code_with(x, w, 32, d, -m, 0, static_cast<float>(high), found) < plain_error)) return false;
  to_codes(found, 0, codes);
  return true;
}

/// A format of 32 codes of 4 or 5 bits behind a scale, and a minimum if it is affine.
struct SmallBlock {
  int bits;
  bool affine;
  Encode* encode;  // by the plain rule
  Decode* decode;

  int bytes() const { return (affine ? 4 : 2) + 4 * bits; }
};

/// The plain codes of each block, or better ones if the search finds any.
void search_blocks(const SmallBlock& format, const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  const Weights all(weights, 32);
  const int levels = 1 << format.bits;
  for (int64_t b = 0; b < n_blocks; ++b, src += 32, dst += format.bytes()) {
    format.encode(src, dst, 1);
    const float* w = all.at(b);
    float plain[32], d, m = 0;
    format.decode(dst, plain, 1);
    const float error = sum_lanes(32, [&](int i) { return w[i] * ((src[i] - plain[i]) * (src[i] - plain[i])); });
    int codes[32];
    if (format.affine ? !better_affine(src, w, levels - 1, error, d, m, codes)
                      : !better_symmetric(src, w, levels / 2, error, d, codes)) {
      continue;
    }
    store_half(dst, d);
    if (format.affine) store_half(dst + 2, m);
    uint8_t* const quants = dst + (format.affine ? 4 : 2);
    format.bits == 4 ? pack_nibbles(codes, quants) : pack_five_bits(codes, quants);
  }
}

}  // namespace

void encode_q4_0_search(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  search_blocks({4, false, encode_q4_0, decode_q4_0}, src, weights, dst, n_blocks);
}
void encode_q5_0_search(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  search_blocks({5, false, encode_q5_0, decode_q5_0}, src, weights, dst, n_blocks);
}
void encode_q4_1_search(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  search_blocks({4, true, encode_q4_1, decode_q4_1}, src, weights, dst, n_blocks);
}
void encode_q5_1_search(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  search_blocks({5, true, encode_q5_1, decode_q5_1}, src, weights, dst, n_blocks);
}

void encode_q4_k_search(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  const Weights all(weights, 256);
  AffineSuperBlock block;
  for (int64_t b = 0; b < n_blocks; ++b, src += 256, dst += 144) {
    encode_affine(src, all.at(b), 15, block);
    store_half(dst, block.d);
    store_half(dst + 2, block.dmin);
    pack_scale_mins(block.scales, dst + 4);
    pack_q4_k(block.codes, dst + 16);
  }
}

void encode_q5_k_search(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  const Weights all(weights, 256);
  AffineSuperBlock block;
  for (int64_t b = 0; b < n_blocks; ++b, src += 256, dst += 176) {
    encode_affine(src, all.at(b), 31, block);
    store_half(dst, block.d);
    store_half(dst + 2, block.dmin);
    pack_scale_mins(block.scales, dst + 4);
    pack_q5_k(block.codes, dst + 16, dst + 48);
  }
}

void encode_q6_k_search(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks) {
  const Weights all(weights, 256);
  for (int64_t b = 0; b < n_blocks; ++b, src += 256, dst += 210) {
    const float* w = all.at(b);
    float fits[16], codes[256];
    for (int s = 0; s < 16; ++s) fits[s] = fit_symmetric(src + 16 * s, w + 16 * s, 16, -32, 31);
    const float d = round_to_half(signed_extreme(fits, 16) / -128);
    for (int s = 0; s < 16; ++s) {
      const int scale = d != 0 ? round_to_int(fits[s] / d, -128, 127) : 0;
      float best_error = INFINITY, trial_codes[16];
      for (int trial = std::max(scale - 1, -128); trial <= std::min(scale + 1, 127); ++trial) {
        const float error =
            code_with(src + 16 * s, w + 16 * s, 16, d * static_cast<float>(trial), 0, -32, 31, trial_codes);
        if (error < best_error || best_error == INFINITY) {
          best_error = error;
          dst[192 + s] = static_cast<uint8_t>(static_cast<int8_t>(trial));
          std::copy(trial_codes, trial_codes + 16, codes + 16 * s);
        }
      }
    }
    store_half(dst + 208, d);
    pack_q6_k(codes, dst, dst + 128);
  }
}

void encode_q4_k(const float* src, uint8_t* dst, int64_t n) { encode_q4_k_search(src, nullptr, dst, n); }
void encode_q5_k(const float* src, uint8_t* dst, int64_t n) { encode_q5_k_search(src, nullptr, dst, n); }
void encode_q6_k(const float* src, uint8_t* dst, int64_t n) { encode_q6_k_search(src, nullptr, dst, n); }

}  // namespace onebit::codec
