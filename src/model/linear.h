// THE routing decision: which weight takes which path. Nothing else in the engine decides about precision or rotation.
//
//   f32     weights stored as f32, f16 or bf16: float activations
//   int8    quantised weights: activations in blocks of 32 int8 codes, integer dot products (rotated first if the
//   weight is) w4a4    as int8, but rows in prompt phase use 4-bit activation codes gather  tables whose rows are only
//   looked up
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"
#include "plan/plan.h"

namespace onebit {

/// Which q4_0 weights use 4-bit activations for prompts.
enum class W4a4 : uint8_t {
  automatic,  // the rotated ones, or those that the file lists in onebit.w4a4_tensors
  all,        // every q4_0 matrix of a block
  none,
};
/// "auto", "all" or "none"; throws Error(usage) otherwise.
W4a4 parse_w4a4(std::string_view text);

class W4a4Policy {
 public:
  W4a4Policy(const GgufFile& file, W4a4 mode);
  bool prompt_int4(const Weight& weight) const;

 private:
  W4a4 mode_;
  bool has_list_ = false;
  std::vector<std::string> listed_;
};

/// y = x W^T with the activations that W asks for. Inputs quantised alike are quantised once.
Value linear(Plan& plan, Value x, const Weight& w);  // [rows, n_out]
/// The same for a stack of experts.
Value linear_experts(Plan& plan, Value x, const Weight& w, Value ids);  // [tok * n_expert_used, n_out]

/// "f32", "int8", "w4a4" (gather is the caller's to know).
std::string_view path_of(const Weight& weight);

}  // namespace onebit
