// Holds every backend of this build against ref, over all cases of op_cases.h. ref is among them: its results must be
// reproducible and free of NaN.
#include <gtest/gtest.h>

#include "backend/ref/ref.h"
#include "op_cases.h"
#include "support/devices.h"

namespace onebit::test {
namespace {

using Parameters = std::tuple<Device, OpCase>;

class OpTest : public testing::TestWithParam<Parameters> {};

TEST_P(OpTest, AgreesWithRef) {
  const auto& [device, op_case] = GetParam();
  const std::unique_ptr<OpRig> rig = op_case.build();
  const std::vector<Result> expected = run_rig(*rig, *make_ref_backend());
  const std::vector<Result> actual = run_rig(*rig, *device.make());
  EXPECT_EQ(compare_results(*rig, expected, actual), "");
}

std::string parameter_name(const testing::TestParamInfo<Parameters>& parameters) {
  const auto& [device, op_case] = parameters.param;
  return device.label() + "_" + op_case.name;
}

INSTANTIATE_TEST_SUITE_P(Devices, OpTest,
                         testing::Combine(testing::ValuesIn(test_devices()), testing::ValuesIn(all_op_cases())),
                         parameter_name);

}  // namespace
}  // namespace onebit::test
