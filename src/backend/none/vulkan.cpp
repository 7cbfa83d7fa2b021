// Stands in for the vulkan device in builds without it.
#include "backend/devices.h"
#include "base/error.h"

namespace onebit {

Probe probe_vulkan() { return {false, "built without vulkan"}; }

std::unique_ptr<Backend> make_vulkan_backend(const BackendOptions&) {
  fail(ErrorKind::refused, "device vulkan: {}", probe_vulkan().why);
}

}  // namespace onebit
