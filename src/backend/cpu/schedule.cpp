#include "backend/cpu/schedule.h"

#include <cstddef>

namespace onebit::cpu {
namespace {

bool overlap(const Touch& a, const Touch& b) { return a.begin < b.end && b.begin < a.end; }

/// Both walk the same rows of the same memory, so a thread meets only what is its own.
bool same_rows(const Touch& a, const Touch& b) {
  return a.begin == b.begin && a.row_bytes == b.row_bytes && a.row_bytes > 0;
}

bool must_wait(const StepAccess& earlier, const StepAccess& later, bool single_row) {
  if (single_row && earlier.row_local && later.row_local) return false;
  const bool local = earlier.row_local && later.row_local && earlier.by_outputs == later.by_outputs;
  for (const Touch& a : earlier.touches) {
    for (const Touch& b : later.touches) {
      if (!overlap(a, b) || (!a.written && !b.written)) continue;
      if (!(local && same_rows(a, b))) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<bool> place_barriers(const std::vector<StepAccess>& steps, bool single_row) {
  std::vector<bool> marks(steps.size(), false);
  size_t since = 0;  // first step after the last barrier
  for (size_t i = 0; i < steps.size(); ++i) {
    bool wait = i == 0;
    for (size_t j = since; j < i && !wait; ++j) wait = must_wait(steps[j], steps[i], single_row);
    if (wait) since = i;
    marks[i] = wait;
  }
  return marks;
}

}  // namespace onebit::cpu
