// The innermost step of gptq.cpp: one block of 32 columns for 16 rows side by side.
#pragma once

#include <cstdint>

namespace onebit {

inline constexpr int64_t kGptqLanes = 16;

/// One block of 16 rows: values of a column lie together.
struct GptqLanes {
  alignas(64) float target[32][kGptqLanes];
  alignas(64) float code[32][kGptqLanes];  ///< -8..7; in: what to keep where it is better
  alignas(64) float scale[kGptqLanes];     ///< representable in f16
};

/// Chooses codes and scale of each row to minimise (target - scale code) M (target - scale code)' with the metric
/// M = u diag(d) u', u unit upper [32, 32]. With `keep`, rows whose present codes are no worse stay as they are.
void round_lanes(const float* u, const float* d, bool keep, GptqLanes& lanes);

}  // namespace onebit
