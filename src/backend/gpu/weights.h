// Weights as this backend holds them, each exactly once: matrices in the layouts of matmul.h, small vectors as f32. In:
// views of a file's bytes. Out: device memory.
#pragma once

#include <map>
#include <memory>

#include "backend/gpu/matmul.h"
#include "backend/gpu/memory.h"

namespace onebit::gpu {

class WeightStore {
 public:
  explicit WeightStore(gpuStream_t stream);
  ~WeightStore();

  void load(const Weight& weight);
  /// The weight must have been loaded.
  const DeviceWeight& get(const Weight& weight) const;
  /// The same as f32 in the file's order, for ops that read single elements (norms, taps of convolutions).
  /// Types other than f32 are decoded on the device when first asked for.
  const float* plain(const Weight& weight);

 private:
  struct Loaded {
    DeviceWeight weight;
    DeviceMemory memory, plain;
  };
  gpuStream_t stream_;
  std::unique_ptr<Uploader> uploader_;
  std::map<const Weight*, Loaded> loaded_;
};

}  // namespace onebit::gpu
