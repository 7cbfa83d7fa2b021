#include "backend/gpu/device.cuh"
#include "backend/gpu/kernels.h"

namespace onebit::gpu {
namespace {

/// One block of threads a group of columns: read twice (the second time from cache), written once.
template <int kThreads, bool kGated>
__global__ void norm(const float* x, const float* w, const float* z, float* y, int64_t group, float eps) {
  wait_for_previous();
  __shared__ float shared[kThreads / kWarp];
  const int64_t first = blockIdx.x * group;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < group; c += kThreads) sum = fmaf(x[first + c], x[first + c], sum);
  const float rms = sqrtf(block_sum(sum, shared) / static_cast<float>(group) + eps);
  for (int64_t c = threadIdx.x; c < group; c += kThreads) {
    const float value = x[first + c] / rms * w[c];
    y[first + c] = kGated ? value * silu_of(z[first + c]) : value;
  }
}

template <bool kGated>
void run(const float* x, const float* w, const float* z, float* y, int64_t n_group, int64_t group, float eps,
         gpuStream_t stream) {
  if (n_group == 0) return;
  const dim3 grid(static_cast<unsigned>(n_group));
  if (group <= 256) {
    launch(norm<64, kGated>, grid, dim3(64), 0, stream, x, w, z, y, group, eps);
  } else {
    launch(norm<512, kGated>, grid, dim3(512), 0, stream, x, w, z, y, group, eps);
  }
}

}  // namespace

void rms_norm(const float* x, const float* w, float* y, int64_t n_group, int64_t group, float eps, gpuStream_t stream) {
  run<false>(x, w, nullptr, y, n_group, group, eps, stream);
}

void gated_norm(const float* x, const float* w, const float* z, float* y, int64_t n_group, int64_t group, float eps,
                gpuStream_t stream) {
  run<true>(x, w, z, y, n_group, group, eps, stream);
}

}  // namespace onebit::gpu
