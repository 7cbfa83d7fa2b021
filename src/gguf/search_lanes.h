// The searches of blocks_search.cpp for 16 blocks at once, one in each lane of a vector. Sums run in the order of the
// plain twin, so that results are the same to the bit. Arrays hold element j of all blocks at [j]; `w` weights the
// squared errors and may be null. `n_lane` lanes at a time: 4, 8 or 16, at most what the processor's registers hold.
#pragma once

#include <cstdint>

namespace onebit::lanes {

inline constexpr int kLanes = 16;

/// One value of each of 16 blocks.
struct alignas(64) Lanes {
  float of[kLanes];

  float& operator[](int lane) { return of[lane]; }
  float operator[](int lane) const { return of[lane]; }
};

/// The plain rule of a format: codes are (x - low) / step + rounding, truncated to 0..high; y = (q - shift) d + m.
struct PlainRule {
  Lanes low, step;
  float rounding, high, shift;
};

/// The lanes that a register of this processor holds: 4, 8 or 16.
int register_lanes();

/// The element [32] of largest magnitude.
void find_extreme(const Lanes* x, Lanes& extreme, int n_lane = register_lanes());

/// The smallest and the largest of 32 elements.
void find_range(const Lanes* x, Lanes& low, Lanes& high, int n_lane = register_lanes());

/// Codes [32] of the plain rule and their squared error.
void code_plainly(const Lanes* x, const Lanes* w, const PlainRule& rule, const Lanes& d, const Lanes& m, Lanes* codes,
                  Lanes& error, int n_lane = register_lanes());

/// Codes [n] of y = scale q - offset, the nearest in [low, high], and their squared error. n: 16 or 32. `codes` may be
/// null: only the error is wanted.
void code_with(const Lanes* x, const Lanes* w, int n, const Lanes& scale, const Lanes& offset, float low, float high,
               Lanes* codes, Lanes& error, int n_lane = register_lanes());

/// The scale of y = scale q, q in [low, high], with the least squared error among a few step sizes. n: 16 or 32.
void fit_symmetric(const Lanes* x, const Lanes* w, int n, float low, float high, Lanes& scale,
                   int n_lane = register_lanes());

/// Of 32 elements: the pair of y = scale q - offset, q in [0, high]. `any_offset`: else it is >= 0.
void fit_affine(const Lanes* x, const Lanes* w, float high, bool any_offset, Lanes& scale, Lanes& offset,
                int n_lane = register_lanes());

}  // namespace onebit::lanes
