// One plan for several devices that work on every layer together: each has some of the heads and some of the columns
// between two matrices, and what they make is added up twice a layer. In: a model's plan. Out: a plan for each device,
// with the rows or columns of matrices and the parts of states that it uses.
//
// Three things can be true of a value: every device has all of it (the residual stream); each has some columns of it
// (queries, keys, values, what lies between two matrices); or each has a term, and the value is their sum. Heads of
// attention and of delta nets are divided by key heads, so that no head reads another device's. A product whose inputs
// are divided makes terms; terms go through what is linear, and are summed (Op::sum_devices) where something else reads
// them. What follows the last sum, and rows buffers, are the first device's alone.
#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace onebit {

struct ColumnRange {
  int64_t begin = 0, end = 0;
  bool operator==(const ColumnRange&) const = default;
};
/// Ascending, apart from each other.
using ColumnRanges = std::vector<ColumnRange>;

/// Some rows (outputs) or columns (inputs) of each matrix of a weight.
struct WeightPart {
  const Weight* whole = nullptr;
  bool rows = true;
  ColumnRanges ranges;
  Weight weight;  // without data

  /// The part's bytes, in the layout of its type.
  std::vector<uint8_t> bytes() const;
};

/// What one device has and does of plans that are divided among `n_device`.
class Shard {
 public:
  Shard(int device, int n_device) : device_(device), n_device_(n_device) {}
  Shard(const Shard&) = delete;

  /// The device's plan; its values are numbered as the plan's, sums are more. Throws Error(refused) when the plan can't
  /// be divided: fewer key heads than devices, blocks of a type that would be cut.
  Plan divide(const Plan& plan);

  // What the divided plans use, for those who load and allocate it.
  /// The part of a weight, or null: all of it or nothing.
  const WeightPart* part(const Weight& weight) const;
  bool uses_whole(const Weight& weight) const { return whole_.contains(&weight); }
  /// The part of a weight that has one, with its bytes for as long as it is loaded.
  Weight& bytes_of(const Weight& weight, std::span<const uint8_t> bytes);
  /// The part of a state, or null: all of it or nothing.
  const State* part(const State& state) const;

 private:
  friend class Division;
  const Weight* part_of(const Weight& weight, bool rows, const ColumnRanges& ranges);
  const State* part_of(const State& state, decltype(State::kind) kind);

  int device_, n_device_;
  std::map<const Weight*, WeightPart> weights_;
  std::set<const Weight*> whole_;
  std::map<const State*, State> states_;
};

}  // namespace onebit
