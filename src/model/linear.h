// THE routing decision: which weight takes which path. Nothing else in the engine decides about precision or rotation.
//
//   f32     weights stored as f32, f16 or bf16: float activations
//   int8    quantised weights: activations in blocks of 32 int8 codes, integer dot products (rotated first if the
//           weight is)
//   w4a4    as int8, but rows in prompt phase use 4-bit activation codes
//   gather  tables whose rows are only looked up
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

/// "amax", "extreme" or "search"; throws Error(usage) otherwise.
Int4Rule parse_int4_rule(std::string_view text);

/// Which weights, and how their inputs are rounded to 4 bits.
struct W4a4Choice {
  W4a4 mode = W4a4::automatic;
  Int4Rule rule = Int4Rule::search;

  W4a4Choice(W4a4 which = W4a4::automatic, Int4Rule how = Int4Rule::search) : mode(which), rule(how) {}
};

class W4a4Policy {
 public:
  W4a4Policy(const GgufFile& file, const W4a4Choice& choice);
  bool prompt_int4(const Weight& weight) const;
  Int4Rule rule() const { return choice_.rule; }

 private:
  W4a4Choice choice_;
  bool has_list_ = false;
  std::vector<std::string> listed_;
};

/// Whether a weight could take the W4A4 path at all: a q4_0 matrix of a block whose outputs bear rounded inputs.
bool may_take_int4(const Weight& weight);

/// y = x W^T with the activations that W asks for. Inputs quantised alike are quantised once.
Value linear(Plan& plan, Value x, const Weight& w);  // [rows, n_out]
/// The same for a stack of experts.
Value linear_experts(Plan& plan, Value x, const Weight& w, Value ids);  // [tok * n_expert_used, n_out]

/// "f32", "int8", "w4a4" (gather is the caller's to know).
std::string_view path_of(const Weight& weight);

}  // namespace onebit
