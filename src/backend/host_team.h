// A team of devices whose values are in the host's memory.
#pragma once

#include <barrier>
#include <vector>

#include "backend/team.h"

namespace onebit {

class HostTeam : public Team {
 public:
  explicit HostTeam(size_t n_member) : values_(n_member), together_(static_cast<std::ptrdiff_t>(n_member)) {}

  /// Each member sums a share of the columns for all.
  void sum(int member, float* x, int64_t n, void* /*queue*/) override {
    values_[static_cast<size_t>(member)] = x;
    together_.arrive_and_wait();
    const auto n_member = static_cast<int64_t>(values_.size());
    for (int64_t i = n * member / n_member; i < n * (member + 1) / n_member; ++i) {
      float sum = values_[0][i];
      for (size_t m = 1; m < values_.size(); ++m) sum += values_[m][i];
      for (float* value : values_) value[i] = sum;
    }
    together_.arrive_and_wait();
  }

 private:
  std::vector<float*> values_;  // by member
  std::barrier<> together_;
};

}  // namespace onebit
