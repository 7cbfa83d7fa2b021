// Where threads must wait for each other between steps. In: what each step reads and writes. Out: one mark per step.
//
// A barrier costs little, but a decoded token of a small model is hundreds of steps of a few microseconds. Two kinds of
// neighbours need none: steps that touch nothing of each other (q, k and v of one input), and row-local steps on the
// same rows, because a thread then only meets its own results (norm, quantise, rope, add, swiglu).
#pragma once

#include <cstdint>
#include <vector>

namespace onebit::cpu {

/// A piece of memory that a step touches: bytes of the arena or of shared scratch, or a whole state.
struct Touch {
  uintptr_t begin = 0, end = 0;
  bool written = false;
  int64_t row_bytes = 0;  // of a row of tokens, 0 for what is not split by rows
};

struct StepAccess {
  bool row_local = false;
  bool by_outputs = false;  // rows are output rows, else token rows
  std::vector<Touch> touches;
};

/// mark[i]: a barrier is needed before step i. The first step's is always set. With a `single_row` all row-local steps
/// run on one thread and never wait for each other.
std::vector<bool> place_barriers(const std::vector<StepAccess>& steps, bool single_row);

}  // namespace onebit::cpu
