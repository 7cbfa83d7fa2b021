// Holds every backend of this build against ref, over all cases of op_cases.h. ref is among them: its results must be
// reproducible and free of NaN.
#include <gtest/gtest.h>

#include <map>

#include "backend/ref/ref.h"
#include "op_cases.h"
#include "support/devices.h"
#include "support/expect_error.h"

namespace onebit::test {
namespace {

TEST(Devices, AlwaysIncludeThePortableCpu) { EXPECT_EQ(make_backend("cpu", {.isa = "portable"})->info().name, "cpu"); }

/// A GPU that is not there must say why; its cases are then not among the tests below.
TEST(Devices, IncludeTheGpuOrSayWhyNot) {
  try {
    std::printf("cuda: %s\n", make_backend("cuda", {})->info().description.c_str());
  } catch (const Error& error) {
    std::printf("not tested: %s\n", error.what());
    EXPECT_EQ(error.kind(), ErrorKind::refused);
    EXPECT_NE(std::string(error.what()).find("device cuda: "), std::string::npos);
  }
}

using Parameters = std::tuple<Device, OpCase>;

class OpTest : public testing::TestWithParam<Parameters> {};

/// A case's rig and what ref makes of it; built once for all devices.
struct Expected {
  std::unique_ptr<OpRig> rig;
  std::vector<Result> results;
};

const Expected& expected_of(const OpCase& op_case) {
  static std::map<std::string, Expected> all;
  Expected& expected = all[op_case.name];
  if (!expected.rig) {
    expected.rig = op_case.build();
    expected.results = run_rig(*expected.rig, *make_ref_backend());
  }
  return expected;
}

TEST_P(OpTest, AgreesWithRef) {
  const auto& [device, op_case] = GetParam();
  const Expected& expected = expected_of(op_case);
  const std::unique_ptr<Backend> backend = device.make();
  if (!backend->keeps_cache(expected.rig->sizes.cache)) {
    expect_refused({"q8_0"}, [&] { check_cache(*backend, {}, expected.rig->sizes.cache); });
    return;
  }
  const std::vector<Result> actual = run_rig(*expected.rig, *backend);
  EXPECT_EQ(compare_results(*expected.rig, expected.results, actual, device.halves()), "");
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
