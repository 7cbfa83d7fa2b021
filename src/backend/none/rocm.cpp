// Stands in for the rocm device in builds without it.
#include "backend/devices.h"
#include "base/error.h"

namespace onebit {

Probe probe_rocm() { return {false, "built without rocm"}; }

std::unique_ptr<Backend> make_rocm_backend(const BackendOptions&) {
  fail(ErrorKind::refused, "device rocm: {}", probe_rocm().why);
}

}  // namespace onebit
