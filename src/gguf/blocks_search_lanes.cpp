// The encoders of blocks_search.cpp for 16 blocks side by side, to the bit the same: each lane sums in the order of the
// plain twin (search_lanes.h). What is left over goes to the twin.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/block_codecs.h"
#include "gguf/k_scales.h"
#include "gguf/packing.h"
#include "gguf/search_lanes.h"

namespace onebit::codec {
namespace {

using lanes::kLanes;
using lanes::Lanes;

// --- lanes and memory -----------------------------------------------------------------------------------------------

/// `n` elements of each of 16 blocks that follow one another.
void load_lanes(const float* src, int n, Lanes* x) {
  for (int l = 0; l < kLanes; ++l, src += n) {
    for (int j = 0; j < n; ++j) x[j][l] = src[j];
  }
}

/// The inverse.
void store_lanes(const Lanes* x, int n, float* dst) {
  for (int l = 0; l < kLanes; ++l, dst += n) {
    for (int j = 0; j < n; ++j) dst[j] = x[j][l];
  }
}

void to_half(Lanes& x) {
  for (float& value : x.of) value = f16_to_f32(f32_to_f16(value));
}

/// What a group of 16 blocks of 32 elements is made of, and its weights.
struct Group {
  Lanes x[32], weights[32];
  const Lanes* w;  // null: all elements count alike

  Group(const float* src, const float* src_weights) : w(src_weights ? weights : nullptr) {
    load_lanes(src, 32, x);
    if (w) load_lanes(src_weights, 32, weights);
  }
};

/// Codes of 16 blocks and their squared errors; y = d (q - shift) + m, m only of Q4_1 and Q5_1.
struct Coded {
  Lanes codes[32], d, m, error;
  int shift = 0;
};

/// Q4_0 (half = 8) or Q5_0 (16): by the plain rule, and what the search found.
void encode_symmetric(const Group& group, int half, Coded& plain, Coded& found) {
  const auto most = static_cast<float>(half - 1), count = static_cast<float>(half);
  lanes::PlainRule rule{{}, {}, count + 0.5f, 2 * count - 1, count};
  lanes::find_extreme(group.x, rule.step);
  for (float& step : rule.step.of) step /= -count;
  plain.d = rule.step;
  to_half(plain.d);
  lanes::code_plainly(group.x, group.w, rule, plain.d, plain.m, plain.codes, plain.error);
  lanes::fit_symmetric(group.x, group.w, 32, -count, most, found.d);
  to_half(found.d);
  lanes::code_with(group.x, group.w, 32, found.d, Lanes{}, -count, most, found.codes, found.error);
  found.shift = -half;
}

/// Q4_1 (high = 15) or Q5_1 (31).
void encode_affine(const Group& group, int levels, Coded& plain, Coded& found) {
  const auto high = static_cast<float>(levels - 1);
  lanes::PlainRule rule{{}, {}, 0.5f, high, 0};
  lanes::find_range(group.x, rule.low, rule.step);
  for (int l = 0; l < kLanes; ++l) rule.step[l] = (rule.step[l] - rule.low[l]) / high;
  plain.d = rule.step;
  plain.m = rule.low;
  to_half(plain.d);
  to_half(plain.m);
  lanes::code_plainly(group.x, group.w, rule, plain.d, plain.m, plain.codes, plain.error);
  Lanes offset;
  lanes::fit_affine(group.x, group.w, high, true, found.d, offset);
  to_half(found.d);
  to_half(offset);
  for (int l = 0; l < kLanes; ++l) found.m[l] = -offset[l];
  lanes::code_with(group.x, group.w, 32, found.d, offset, 0, high, found.codes, found.error);
}

/// Blocks of 32 in groups of 16, the rest one by one.
void in_groups(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks, int64_t bytes, int bits,
               bool affine, EncodeSearch* rest) {
  Coded plain, found;
  plain.m = found.m = Lanes{};
  for (; n_blocks >= kLanes; n_blocks -= kLanes, src += kLanes * 32) {
    const Group group(src, weights);
    affine ? encode_affine(group, 1 << bits, plain, found) : encode_symmetric(group, 1 << (bits - 1), plain, found);
    for (int l = 0; l < kLanes; ++l, dst += bytes) {
      const Coded& best = found.error[l] < plain.error[l] ? found : plain;
      int codes[32];
      for (int j = 0; j < 32; ++j) codes[j] = static_cast<int>(best.codes[j][l]) - best.shift;
      store_half(dst, best.d[l]);
      if (affine) store_half(dst + 2, best.m[l]);
      uint8_t* const quants = dst + (affine ? 4 : 2);
      bits == 4 ? pack_nibbles(codes, quants) : pack_five_bits(codes, quants);
    }
    if (weights) weights += kLanes * 32;
  }
  rest(src, weights, dst, n_blocks);
}

// --- super-blocks ---------------------------------------------------------------------------------------------------

/// Two super-blocks of Q4_K or Q5_K: 16 sub-blocks.
struct TwoAffine {
  float d[2], dmin[2];
  ScaleMin scales[16];
  float codes[512];
};

/// d and dmin of each super-block and the nearest codes of its sub-blocks' scales and offsets.
void choose_super_scales(const Lanes& scales, const Lanes& offsets, TwoAffine& out) {
  for (int super = 0; super < 2; ++super) {
    float largest_scale = 0, largest_offset = 0;
    for (int s = 8 * super; s < 8 * super + 8; ++s) {
      largest_scale = std::max(largest_scale, scales[s]);
      largest_offset = std::max(largest_offset, offsets[s]);
    }
    const float d = f16_to_f32(f32_to_f16(largest_scale / 63)), dmin = f16_to_f32(f32_to_f16(largest_offset / 63));
    for (int s = 8 * super; s < 8 * super + 8; ++s) {
      out.scales[s].scale = d > 0 ? round_to_int(scales[s] / d, 0, 63) : 0;
      out.scales[s].min = dmin > 0 ? round_to_int(offsets[s] / dmin, 0, 63) : 0;
    }
    out.d[super] = d;
    out.dmin[super] = dmin;
  }
}

void encode_two(const float* src, const float* weights, float high, TwoAffine& out) {
  const Group group(src, weights);
  Lanes scale, offset, error, best_error = {};
  lanes::fit_affine(group.x, group.w, high, false, scale, offset);
  choose_super_scales(scale, offset, out);
  ScaleMin start[16];
  std::copy(out.scales, out.scales + 16, start);
  const auto code = [&](const ScaleMin* trial, Lanes* codes) {
    for (int l = 0; l < kLanes; ++l) {
      scale[l] = out.d[l / 8] * static_cast<float>(trial[l].scale);
      offset[l] = out.dmin[l / 8] * static_cast<float>(trial[l].min);
    }
    lanes::code_with(group.x, group.w, 32, scale, offset, 0, high, codes, error);
  };
  for (int candidate = 0; candidate < 9; ++candidate) {
    ScaleMin trial[16];
    for (int l = 0; l < kLanes; ++l) {
      trial[l] = {std::clamp(start[l].scale + candidate % 3 - 1, 0, 63),
                  std::clamp(start[l].min + candidate / 3 - 1, 0, 63)};
    }
    code(trial, nullptr);
    for (int l = 0; l < kLanes; ++l) {
      if (candidate != 0 && !(error[l] < best_error[l])) continue;
      best_error[l] = error[l];
      out.scales[l] = trial[l];
    }
  }
  Lanes codes[32];
  code(out.scales, codes);
  store_lanes(codes, 32, out.codes);
}

/// Calls pack(codes, block) behind the heads of all blocks, two at a time; the rest one by one.
template <class Pack>
void in_pairs(const float* src, const float* weights, uint8_t* dst, int64_t n_blocks, int64_t bytes, float high,
              Pack pack, EncodeSearch* rest) {
  TwoAffine two;
  for (; n_blocks >= 2; n_blocks -= 2, src += 512) {
    encode_two(src, weights, high, two);
    for (int super = 0; super < 2; ++super, dst += bytes) {
      store_half(dst, two.d[super]);
      store_half(dst + 2, two.dmin[super]);
      pack_scale_mins(two.scales + 8 * super, dst + 4);
      pack(two.codes + 256 * super, dst);
    }
    if (weights) weights += 512;
  }
  rest(src, weights, dst, n_blocks);
}

/// One super-block of Q6_K: 16 sub-blocks of 16.
void encode_q6_k_block(const float* src, const float* weights, uint8_t* dst) {
  Lanes x[16], w[16], codes[16], fits, scale = {}, error;
  load_lanes(src, 16, x);
  if (weights) load_lanes(weights, 16, w);
  const Lanes* const counted = weights ? w : nullptr;
  lanes::fit_symmetric(x, counted, 16, -32, 31, fits);
  float amax = 0, extreme = 0;
  for (int s = 0; s < 16; ++s) {
    if (!(std::fabs(fits[s]) > amax)) continue;
    amax = std::fabs(fits[s]);
    extreme = fits[s];
  }
  const float d = f16_to_f32(f32_to_f16(extreme / -128));
  int start[16], best[16] = {};
  float best_error[16];
  for (int s = 0; s < 16; ++s) start[s] = d != 0 ? round_to_int(fits[s] / d, -128, 127) : 0;
  std::fill(best_error, best_error + 16, INFINITY);
  for (int step = -1; step <= 1; ++step) {
    for (int s = 0; s < 16; ++s) scale[s] = d * static_cast<float>(start[s] + step);
    lanes::code_with(x, counted, 16, scale, Lanes{}, -32, 31, nullptr, error);
    for (int s = 0; s < 16; ++s) {
      const int trial = start[s] + step;
      if (trial < -128 || trial > 127 || !(error[s] < best_error[s] || best_error[s] == INFINITY)) continue;
      best_error[s] = error[s];
      best[s] = trial;
    }
  }
  for (int s = 0; s < 16; ++s) scale[s] = d * static_cast<float>(best[s]);
  lanes::code_with(x, counted, 16, scale, Lanes{}, -32, 31, codes, error);
  float in_order[256];
  store_lanes(codes, 16, in_order);
  pack_q6_k(in_order, dst, dst + 128);
  for (int s = 0; s < 16; ++s) dst[192 + s] = static_cast<uint8_t>(static_cast<int8_t>(best[s]));
  store_half(dst + 208, d);
}

}  // namespace

void encode_q4_0_lanes(const float* src, const float* weights, uint8_t* dst, int64_t n) {
  in_groups(src, weights, dst, n, 18, 4, false, encode_q4_0_search);
}
void encode_q5_0_lanes(const float* src, const float* weights, uint8_t* dst, int64_t n) {
  in_groups(src, weights, dst, n, 22, 5, false, encode_q5_0_search);
}
void encode_q4_1_lanes(const float* src, const float* weights, uint8_t* dst, int64_t n) {
  in_groups(src, weights, dst, n, 20, 4, true, encode_q4_1_search);
}
void encode_q5_1_lanes(const float* src, const float* weights, uint8_t* dst, int64_t n) {
  in_groups(src, weights, dst, n, 24, 5, true, encode_q5_1_search);
}

void encode_q4_k_lanes(const float* src, const float* weights, uint8_t* dst, int64_t n) {
  const auto pack = [](const float* codes, uint8_t* block) { pack_q4_k(codes, block + 16); };
  in_pairs(src, weights, dst, n, 144, 15, pack, encode_q4_k_search);
}

void encode_q5_k_lanes(const float* src, const float* weights, uint8_t* dst, int64_t n) {
  const auto pack = [](const float* codes, uint8_t* block) { pack_q5_k(codes, block + 16, block + 48); };
  in_pairs(src, weights, dst, n, 176, 31, pack, encode_q5_k_search);
}

void encode_q6_k_lanes(const float* src, const float* weights, uint8_t* dst, int64_t n) {
  for (int64_t b = 0; b < n; ++b) {
    encode_q6_k_block(src + b * 256, weights ? weights + b * 256 : nullptr, dst + b * 210);
  }
}

}  // namespace onebit::codec
