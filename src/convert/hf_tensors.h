// Which tensors a GGUF file gets from a checkpoint, and how each row of them is made. The only place that knows the
// Hugging Face names, and the orders that differ: value heads, rotary pairs, fused projections, experts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "convert/hf_model.h"
#include "convert/safetensors.h"

namespace onebit {

/// A row of a checkpoint's tensor, seen as [n_rows, n_cols].
struct RowOrigin {
  const HfTensor* tensor;
  int64_t row;
};

enum class ValueChange { none, plus_one, minus_exp };

/// A tensor of the GGUF file. Row r is row(r), its columns picked by `columns` (all in order when that is empty), its
/// values changed. Or, when `values` is not empty, simply these.
struct HfOutput {
  std::string name;
  std::vector<int64_t> shape;  ///< outermost first
  std::function<RowOrigin(int64_t row)> row;
  std::vector<int32_t> columns = {};
  ValueChange change = ValueChange::none;
  std::vector<float> values = {};

  int64_t n_cols() const { return shape.back(); }
  /// Rows [begin, end) as f32, into out [end - begin, n_cols].
  void read_rows(int64_t begin, int64_t end, float* out) const;
};

struct HfOutputs {
  std::vector<HfOutput> tensors;  ///< whole-model tensors first, then block by block
  int64_t n_mtp = 0;              ///< MTP blocks found behind the trunk
};

/// Throws Error(refused) for a tensor that has no place in the architecture, is missing from a group, or has a wrong
/// shape or dtype.
HfOutputs plan_hf_tensors(const Checkpoint& checkpoint, const HfModel& model);

}  // namespace onebit
