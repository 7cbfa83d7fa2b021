// What every device offers the registry. A device that is not built in answers from backend/none/.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace onebit {

/// Whether a device can be used by this build on this machine, and if not, why ("built without cuda").
struct Probe {
  bool usable = false;
  std::string why;
  int n_device = 1;
};

Probe probe_cpu();
Probe probe_cuda();
Probe probe_rocm();
Probe probe_vulkan();

/// Each throws Error(refused) when its probe says no, and for options that it can't satisfy.
std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_rocm_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_vulkan_backend(const BackendOptions& options);

}  // namespace onebit
