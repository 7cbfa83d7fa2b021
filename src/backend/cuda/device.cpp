// The cuda device's entry in the registry: whether a usable NVIDIA GPU is here, and its Backend.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include "backend/devices.h"
#include "backend/gpu/backend.h"
#include "base/error.h"

namespace onebit {
namespace {

constexpr int kLeastMajor = 8;  // the oldest compute capability that kernels are built for

}  // namespace

Probe probe_cuda() {
  int n_device = 0;
  const cudaError_t error = cudaGetDeviceCount(&n_device);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return {false, fmt::format("no usable NVIDIA GPU ({})", cudaGetErrorString(error))};
  }
  if (n_device == 0) return {false, "no NVIDIA GPU"};
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major < kLeastMajor) {
    return {false, fmt::format("the NVIDIA GPU has compute capability {}.x, kernels are built for {}.0 and later",
                               major, kLeastMajor)};
  }
  return {true, "", n_device};
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  const Probe probe = probe_cuda();
  if (!probe.usable) fail(ErrorKind::refused, "device cuda: {}", probe.why);
  if (options.ordinal < 0 || options.ordinal >= probe.n_device) {
    fail(ErrorKind::refused, "device cuda{}: cuda0 to cuda{} are here", options.ordinal, probe.n_device - 1);
  }
  return std::make_unique<gpu::GpuBackend>("cuda", options.ordinal);
}

}  // namespace onebit
