// A newcomer's way through this folder: runtime.h (names), matmul.h (weights, activations, products), kernels.h (all
// other ops), groups.h (which steps run together), bind.h (from steps to kernels), program.h (running a batch).
#include "backend/gpu/backend.h"

#include <algorithm>

#include "backend/gpu/nccl.h"
#include "backend/gpu/program.h"
#include "backend/gpu/states.h"
#include "base/error.h"

namespace onebit::gpu {

GpuBackend::GpuBackend(const char* name, int ordinal) {
  check(gpuSetDevice(ordinal), "choosing the device");
  gpuDeviceProp properties;
  check(gpuGetDeviceProperties(&properties, ordinal), "asking the device");
  size_t free = 0, total = 0;
  check(gpuMemGetInfo(&free, &total), "asking the device");
  chip_ = {properties.multiProcessorCount, most_shared_bytes(properties)};
  info_.name = name;
  info_.description = fmt::format("{}, {} multiprocessors, compute capability {}.{}", properties.name,
                                  chip_.n_multiprocessor, properties.major, properties.minor);
  info_.memory_bytes = static_cast<int64_t>(free);
  stream_ = std::make_shared<Stream>(ordinal);
  weights_ = std::make_unique<WeightStore>(stream_->get());
}

void GpuBackend::load(const Weight& weight) {
  stream_->use_device();
  weights_->load(weight);
}

std::unique_ptr<StatePool> GpuBackend::make_states(const std::vector<const State*>& states, const StateSizes& sizes) {
  stream_->use_device();
  return std::make_unique<States>(states, sizes, stream_);
}

std::unique_ptr<Program> GpuBackend::compile(const Plan& plan, std::span<StatePool* const> pools,
                                             const PlanLimits& limits) {
  stream_->use_device();
  return std::make_unique<GpuProgram>(plan, pools, limits, *weights_, chip_, membership_, stream_);
}

std::shared_ptr<Team> GpuBackend::make_team(std::span<const int> ordinals) { return make_nccl_team(ordinals); }

Peaks GpuBackend::measure_peaks() {
  constexpr int64_t kBytes = int64_t{256} << 20;  // far beyond any cache
  constexpr int kCopies = 20;
  stream_->use_device();
  const DeviceMemory from(kBytes, "measuring"), to(kBytes, "measuring");
  Event start(true), end(true);
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {  // the first one warms up
    start.record(stream_->get());
    for (int i = 0; i < kCopies; ++i) {
      check(gpuMemcpyAsync(to.data(), from.data(), kBytes, gpuMemcpyDeviceToDevice, stream_->get()), "measuring");
    }
    end.record(stream_->get());
    end.wait("measuring");
    best = std::max(best, 2.0 * kBytes * kCopies / (end.milliseconds_since(start) * 1e6));
  }
  return {.gbps = best, .int8_tops = 0};
}

}  // namespace onebit::gpu
