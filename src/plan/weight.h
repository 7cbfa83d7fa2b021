// A weight as a plan sees it: a named, shape-checked view of bytes owned by a GgufFile, with its routing marks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/types.h"
#include "plan/op.h"

namespace onebit {

struct Weight {
  std::string name;
  BlockType type = BlockType::f32;
  std::vector<int64_t> shape;     // outermost first: [n_out, n_in], [n_expert, n_out, n_in] or [n]
  std::span<const uint8_t> data;  // the file's bytes
  bool rotated = false;           // stored in the Hadamard-rotated basis along n_in: inputs are rotated too
  bool prompt_int4 = false;       // prompt rows use 4-bit activations (model/linear.cpp decides)
  Int4Rule int4_rule = Int4Rule::search;
  bool gather_only = false;       // rows are only looked up (embed, select_walk): a backend may leave them in the file

  /// How the inputs of a quantised matrix are quantised.
  QuantizeParams input() const { return {rotated, prompt_int4, int4_rule}; }
  int64_t n_in() const { return shape.back(); }
  int64_t n_out() const { return shape.size() < 2 ? 1 : shape[shape.size() - 2]; }
  int64_t n_expert() const { return shape.size() < 3 ? 1 : shape[shape.size() - 3]; }
};

}  // namespace onebit
