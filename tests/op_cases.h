// Every op with the sizes and weight types it is tested at, declared once: what a backend must agree on with ref.
// A case builds its rig anew each time, always the same one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/op_rig.h"

namespace onebit::test {

struct OpCase {
  std::string name;  // letters, digits and _
  std::function<std::unique_ptr<OpRig>()> build;
};

using OpCases = std::vector<OpCase>;

}  // namespace onebit::test

// The cases, by family. Each file expects what is above, and matmul.h, which comes first.
#include "op_cases/matmul.h"
//
#include "op_cases/attention.h"
#include "op_cases/delta_net.h"
#include "op_cases/drafter.h"
#include "op_cases/elementwise.h"
#include "op_cases/experts.h"
#include "op_cases/norm.h"
#include "op_cases/rope.h"
#include "op_cases/rows.h"

namespace onebit::test {

inline OpCases all_op_cases() {
  OpCases cases;
  add_rows_cases(cases);
  add_elementwise_cases(cases);
  add_norm_cases(cases);
  add_matmul_cases(cases);
  add_experts_cases(cases);
  add_rope_cases(cases);
  add_attention_cases(cases);
  add_delta_net_cases(cases);
  add_drafter_cases(cases);
  return cases;
}

}  // namespace onebit::test
