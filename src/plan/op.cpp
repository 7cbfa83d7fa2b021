#include "plan/op.h"

#include <array>

#include "base/error.h"

namespace onebit {

const OpInfo& op_info(Op op) {
  using enum Tolerance;
  static constexpr std::array<OpInfo, kOpCount> kInfo = {{
      {"embed", rounding, false},
      {"rms_norm", reduction, false},
      {"add", rounding, true},
      {"sigmoid_mul", rounding, true},
      {"swiglu", rounding, true},
      {"softcap", rounding, true},
      {"slice_heads", exact, false},
      {"quantize", integer, false},
      {"matmul", integer, false},
      {"route", reduction, false},
      {"matmul_experts", integer, false},
      {"combine_experts", reduction, false},
      {"gather_rows", exact, false},
      {"rope", rounding, true},
      {"kv_store", rounding, false},
      {"attention", reduction, false},
      {"block_attention", reduction, false},
      {"delta_net", reduction, false},
      {"gated_norm", reduction, false},
      {"block_conv", rounding, false},
      {"store_rows", exact, false},
      {"load_rows", exact, false},
      {"argmax", exact, false},
      {"top_k", exact, false},
      {"select_walk", reduction, false},
      {"sum_devices", rounding, true},
  }};
  CHECK(static_cast<int>(op) < kOpCount);
  return kInfo[static_cast<size_t>(op)];
}

}  // namespace onebit
