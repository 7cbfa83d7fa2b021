// The list of ops: which function runs each, what scratch it takes, and whether its rows are independent.
#include "backend/cpu/step.h"

#include <algorithm>

#include "base/error.h"

namespace onebit::cpu {

Range share(int64_t n, int64_t unit, int index, int parts) {
  const int64_t units = (n + unit - 1) / unit;
  const auto border = [&](int64_t i) { return std::min((units * i + parts - 1) / parts * unit, n); };
  return {border(index), border(index + 1)};
}

const OpEntry& op_entry(Op op) {
  static constexpr OpEntry kEntries[kOpCount] = {
      {run_embed, nullptr, true},
      {run_rms_norm, nullptr, true},
      {run_add, nullptr, true},
      {run_sigmoid_mul, nullptr, true},
      {run_swiglu, nullptr, true},
      {run_softcap, nullptr, true},
      {run_slice_heads, nullptr, true},
      {run_quantize, nullptr, true},
      {run_matmul, needs_matmul, false},
      {run_route, needs_route, true},
      {run_matmul_experts, needs_matmul_experts, false},
      {run_combine_experts, nullptr, true},
      {run_gather_rows, nullptr, false},
      {run_rope, nullptr, true},
      {run_kv_store, needs_kv_store, false},
      {run_attention, needs_attention, false},
      {run_attention, needs_attention, false},  // block_attention
      {run_delta_net, needs_delta_net, false},
      {run_gated_norm, nullptr, true},
      {run_block_conv, nullptr, false},
      {run_store_rows, nullptr, true},
      {run_load_rows, nullptr, false},
      {run_top_k, needs_top_k, false},  // argmax
      {run_top_k, needs_top_k, false},
      {run_select_walk, needs_select_walk, false},
      {run_sum_devices, nullptr, false},
  };
  CHECK(static_cast<int>(op) < kOpCount);
  return kEntries[static_cast<size_t>(op)];
}

}  // namespace onebit::cpu
