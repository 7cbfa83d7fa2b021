// Holds every backend of this build against ref, over all cases of op_cases.h.
#include <gtest/gtest.h>

#include "backend/ref/ref.h"
#include "base/error.h"
#include "op_cases.h"

namespace onebit::test {
namespace {

/// A device with the instruction set it is asked to use.
struct Device {
  std::string name, isa;
};

/// The devices that can be made here. ref is one of them: it must agree with itself bit for bit.
std::vector<Device> devices() {
  std::vector<Device> usable;
  for (const Device& device :
       {Device{"ref", ""}, Device{"cpu", "portable"}, Device{"cpu", "avx2"}, Device{"cpu", "avx512"}}) {
    try {
      make_backend(device.name, {.n_threads = 2, .isa = device.isa});
      usable.push_back(device);
    } catch (const Error&) {  // not built in, or not for this machine
    }
  }
  return usable;
}

using Parameters = std::tuple<Device, OpCase>;

class OpTest : public testing::TestWithParam<Parameters> {};

TEST_P(OpTest, AgreesWithRef) {
  const auto& [device, op_case] = GetParam();
  const std::unique_ptr<OpRig> rig = op_case.build();
  const std::vector<Result> expected = run_rig(*rig, *make_ref_backend());
  const std::vector<Result> actual = run_rig(*rig, *make_backend(device.name, {.n_threads = 2, .isa = device.isa}));
  EXPECT_EQ(compare_results(*rig, expected, actual), "");
}

std::string parameter_name(const testing::TestParamInfo<Parameters>& parameters) {
  const auto& [device, op_case] = parameters.param;
  return device.name + device.isa + "_" + op_case.name;
}

INSTANTIATE_TEST_SUITE_P(Devices, OpTest,
                         testing::Combine(testing::ValuesIn(devices()), testing::ValuesIn(all_op_cases())),
                         parameter_name);

}  // namespace
}  // namespace onebit::test
