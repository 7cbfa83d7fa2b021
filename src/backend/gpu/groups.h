// Which steps of a plan run together, and where their values live. In: a plan. Out: groups in the order in which they
// are enqueued, and a place in one arena for every value that is still made.
//
// Three patterns are taken together, because at decoding a launch costs as much as the bytes of a small step:
//   acts      a norm, gate or SwiGLU with the quantisation of its result (matmul.h, ActsInput)
//   products  all products that read the same input, each with the addition that follows it (the residual)
//   step      everything else, a step by itself
// A group runs where its first step stood; what a later member reads must have been there by then.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace onebit::gpu {

struct Group {
  enum class Kind : uint8_t { step, acts, products };
  /// A product and the step that adds to its result, or -1.
  struct Member {
    int step = -1, add = -1;
  };
  Kind kind = Kind::step;
  int step = -1;                      // kind step; kind acts: the quantisation
  int before = -1;                    // kind acts: the step whose result is quantised, or -1
  bool keep = false;                  // kind acts: other steps read that result too
  std::vector<Member> products = {};  // kind products
};

std::vector<Group> group_steps(const Plan& plan);

/// Values that a group reads and writes; with `over`, writes[0] may take over the storage of that value if it dies.
struct Access {
  std::vector<Value> reads, writes;
  Value over;
};
Access access_of(const Plan& plan, const Group& group);

/// Offsets of values in the arena, 256-byte aligned; -1 for values that no group writes.
struct Placement {
  std::vector<int64_t> offset;
  int64_t bytes = 0;
};
Placement place_groups(const Plan& plan, const std::vector<Group>& groups, const PlanLimits& limits);

}  // namespace onebit::gpu
