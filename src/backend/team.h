// Devices that run the parts of one plan at the same time (plan/shard.h) and add up what each of them made.
#pragma once

#include <cstdint>
#include <memory>

namespace onebit {

class Team {
 public:
  virtual ~Team() = default;
  /// x [n] of every member becomes the sum of all of theirs, with equal bits everywhere. All members
  /// call it for the same values in the same order, each on a thread of its own. `queue`: the device's, in which x is
  /// made and will be read; null where it is there already.
  virtual void sum(int member, float* x, int64_t n, void* queue) = 0;
};

struct Membership {
  std::shared_ptr<Team> team;  // null: alone
  int member = 0;

  void sum(float* x, int64_t n, void* queue) const {
    if (team) team->sum(member, x, n, queue);
  }
};

}  // namespace onebit
