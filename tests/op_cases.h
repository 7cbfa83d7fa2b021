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

#include "op_cases/matmul.h"
#include "op_cases/norm.h"

namespace onebit::test {

inline OpCases all_op_cases() {
  OpCases cases;
  add_norm_cases(cases);
  add_matmul_cases(cases);
  return cases;
}

}  // namespace onebit::test
