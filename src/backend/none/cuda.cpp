// Stands in for the cuda device in builds without it.
#include "backend/devices.h"
#include "base/error.h"

namespace onebit {

Probe probe_cuda() { return {false, "built without cuda"}; }

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions&) {
  fail(ErrorKind::refused, "device cuda: {}", probe_cuda().why);
}

}  // namespace onebit
