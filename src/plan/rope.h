// How fast the pairs of a rotary position embedding turn: one home for every backend.
#pragma once

#include <vector>

#include "plan/op.h"

namespace onebit {

/// Radians a position for each pair, [n_rot/2] in f64, YaRN included. `factors`: [n_rot/2] by which angles are divided,
/// or nullptr.
std::vector<double> rope_frequencies(const RopeParams& params, const float* factors);

/// Whether both turn every pair alike, whatever heads they are applied to.
bool same_angles(const RopeParams& a, const RopeParams& b);

/// By what cosine and sine are multiplied: YaRN's attention factor, or 1.
double rope_magnitude(const RopeParams& params);

}  // namespace onebit
