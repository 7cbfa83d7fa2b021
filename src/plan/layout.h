// One plan on several devices: which device holds each weight and state, and what each of them runs. In: plans, and
// each device's share. Out: a part of the plan for each device. Knows devices only by their number.
//
// Devices hold whole layers, in order, so that a batch goes through them one after another and one value ([tok,
// n_embd]) goes from each to the next. A step runs where its weights and its state are. Rows buffers, and all that
// belongs to a drafter alone, are on the last device; what the drafter shares with its target is where the target has
// it.
#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace onebit {

/// Output `output` of the part of device `device`.
struct PartOutput {
  int device = 0, output = 0;
};

struct PlanPart {
  Plan plan;                        // no steps: the device has nothing to do
  std::vector<PartOutput> sources;  // by entry of the plan: where it comes from, always an earlier device
};

struct DividedPlan {
  std::vector<PlanPart> parts;      // by device
  std::vector<PartOutput> outputs;  // by output of the whole plan
};

class Layout {
 public:
  /// Places what `plans` use on shares.size() devices. The first plan is cut where only one value is alive, so that the
  /// bytes of all weights are divided as nearly as that allows in the proportion of `shares` (not negative, not all 0).
  Layout(std::span<const Plan* const> plans, std::span<const double> shares);

  int n_device() const { return n_device_; }
  /// Empty for a weight that no plan uses.
  const std::set<int>& holders(const Weight& weight) const;
  int device_of(const State& state) const;
  /// The plan must be one of those that were placed, or use nothing that they don't.
  DividedPlan divide(const Plan& plan) const;

 private:
  void place_layers(const Plan& plan, int64_t other_bytes, std::span<const double> shares);
  void place_rest(const Plan& plan);
  int device_for(const Step& step, int least) const;
  std::vector<int> devices_of(const Plan& plan) const;

  int n_device_;
  std::map<const Weight*, std::set<int>> weights_;
  std::map<const State*, int> states_;
};

}  // namespace onebit
