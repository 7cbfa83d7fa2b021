// The rocm device's entry in the registry: whether a usable AMD GPU is here, and its Backend. Compiled only: it has not
// run on a GPU yet.
#include <fmt/format.h>
#include <hip/hip_runtime.h>

#include <string_view>

#include "backend/devices.h"
#include "backend/gpu/backend.h"
#include "base/error.h"

namespace onebit {
namespace {

constexpr std::string_view kArchs = ONEBIT_HIP_ARCH_LIST;  // "gfx1100, gfx1151": what kernels are built for

/// "gfx1151" of "gfx1151:xnack-"
std::string_view arch_of(const hipDeviceProp_t& properties) {
  const std::string_view name = properties.gcnArchName;
  return name.substr(0, name.find(':'));
}

}  // namespace

Probe probe_rocm() {
  int n_device = 0;
  const hipError_t error = hipGetDeviceCount(&n_device);
  if (error != hipSuccess) {
    (void)hipGetLastError();
    return {false, fmt::format("no usable AMD GPU ({})", hipGetErrorString(error))};
  }
  if (n_device == 0) return {false, "no AMD GPU"};
  hipDeviceProp_t properties;
  if (hipGetDeviceProperties(&properties, 0) != hipSuccess) return {false, "the AMD GPU does not answer"};
  if (kArchs.find(arch_of(properties)) == std::string_view::npos) {
    return {false, fmt::format("the AMD GPU is {}, kernels are built for {}", arch_of(properties), kArchs)};
  }
  return {true, "", n_device};
}

std::unique_ptr<Backend> make_rocm_backend(const BackendOptions& options) {
  const Probe probe = probe_rocm();
  if (!probe.usable) fail(ErrorKind::refused, "device rocm: {}", probe.why);
  if (options.ordinal < 0 || options.ordinal >= probe.n_device) {
    fail(ErrorKind::refused, "device rocm{}: rocm0 to rocm{} are here", options.ordinal, probe.n_device - 1);
  }
  return std::make_unique<gpu::GpuBackend>("rocm", options.ordinal);
}

}  // namespace onebit
