// Stands in for the cpu device in builds without it.
#include "backend/devices.h"
#include "base/error.h"

namespace onebit {

Probe probe_cpu() { return {false, "built without cpu"}; }

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions&) {
  fail(ErrorKind::refused, "device cpu: {}", probe_cpu().why);
}

}  // namespace onebit
