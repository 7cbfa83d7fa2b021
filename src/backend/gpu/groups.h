// Which steps of a plan run together, and where their values live. In: a plan. Out: groups in the order in which they
// are enqueued, and a place in one arena for every value that is still made.
//
// Five patterns are taken together, because at decoding a launch costs as much as the bytes of a small step:
//   acts      a norm, gate or SwiGLU with the quantisation of its result (matmul.h, ActsInput)
//   heads     between projections and attention: selecting heads, their norm, rotation, storing keys and values
//   products  all products that read the same input, each with the addition that follows it (the residual)
//   experts   the same for products with experts' matrices
//   step      everything else, a step by itself
// A group of heads runs where its first rotation stood, any other where its first step did; what a later member reads
// must have been there by then.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace onebit::gpu {

struct Group {
  enum class Kind : uint8_t { step, acts, heads, products, experts };
  /// A product and the step that adds to its result, or -1.
  struct Member {
    int step = -1, add = -1;
  };
  /// What happens to one value; steps or -1. The first of them reads, the last one writes.
  struct Chain {
    int slice = -1, norm = -1, rope = -1;
  };
  Kind kind = Kind::step;
  int step = -1;                      // kind step; kind acts: the quantisation
  int add = -1;                       // kind step, combine_experts: the addition to its result, or -1
  int before = -1;                    // kind acts: the step whose result is quantised, or -1
  bool keep = false;                  // kind acts: other steps read that result too
  std::vector<Member> products = {};  // kinds products and experts
  std::vector<Chain> chains = {};     // kind heads
  int store = -1;                     // kind heads: the kv_store of one of the chains, or -1
};

std::vector<Group> group_steps(const Plan& plan);

/// What a chain reads and makes; whether anything but the group's store reads what it made.
Value chain_input(const Plan& plan, const Group::Chain& chain);
Value chain_output(const Plan& plan, const Group::Chain& chain);
bool read_again(const Plan& plan, const Group& group, Value made);

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
