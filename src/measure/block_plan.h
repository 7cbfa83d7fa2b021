// A model's plan cut into its blocks, and which matrices of a block read the same input. In: a model. Out: ranges of
// steps, groups of matrices.
#pragma once

#include <vector>

#include "model/model.h"

namespace onebit {

/// Matrices that read the same value.
struct InputGroup {
  Value x;                              ///< f32 [rows, k]
  std::vector<const Weight*> matrices;  ///< in the order of the plan
  Value ids{-1};                        ///< experts: which one each (row, choice) takes [tok, n_used]
  int64_t n_used = 0;                   ///< experts per token; 0: no experts
  int64_t k = 0;                        ///< inputs

  int64_t n_matrix() const { return matrices.front()->n_expert(); }
};

class BlockPlan {
 public:
  /// `model` must be opened without W4A4.
  explicit BlockPlan(Model& model);

  const Plan& plan() const { return plan_; }
  int64_t n_block() const { return static_cast<int64_t>(bounds_.size()) - 1; }
  /// First step of block `i`; of block n_block(): the step behind the last block.
  size_t begin(int64_t i) const { return bounds_[static_cast<size_t>(i)]; }
  /// Inputs of block `i`.
  std::vector<InputGroup> groups(int64_t i) const;

 private:
  Plan plan_;
  std::vector<size_t> bounds_;  // [n_block + 1]
};

}  // namespace onebit
