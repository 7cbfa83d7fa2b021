#include "backend/gpu/runtime.h"

#include "base/error.h"

namespace onebit::gpu {

void check(gpuError_t error, const char* what) {
  if (error == gpuSuccess) return;
  (void)ONEBIT_GPU(GetLastError)();  // a failed call must not fail the next check
  if (error == gpuErrorMemoryAllocation) {
    fail(ErrorKind::out_of_memory, "the device has no memory left for {}; lower --ctx-size or --parallel", what);
  }
  fail(ErrorKind::runtime, "{}: the device failed: {}", what, ONEBIT_GPU(GetErrorString)(error));
}

void check_launch(const char* what) { check(ONEBIT_GPU(GetLastError)(), what); }

}  // namespace onebit::gpu
