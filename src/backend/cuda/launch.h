// Facts of the current device, and launches that runtime.h does not know: teams of blocks (clusters of sm_90).
#pragma once

#include "backend/gpu/runtime.h"

namespace onebit::cuda {

struct ChipFacts {
  int n_sm = 0, major = 0;
  int shared_bytes = 0;  // most shared memory of a block
};

inline ChipFacts chip_facts() {
  using gpu::check;
  ChipFacts facts;
  int device = 0;
  const auto read = [&](int& value, cudaDeviceAttr attribute) {
    check(cudaDeviceGetAttribute(&value, attribute, device), "reading device properties");
  };
  check(cudaGetDevice(&device), "reading device properties");
  read(facts.n_sm, cudaDevAttrMultiProcessorCount);
  read(facts.major, cudaDevAttrComputeCapabilityMajor);
  read(facts.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return facts;
}

#ifdef __CUDACC__
/// Starts `blocks` blocks of `threads` threads, every `team` of them a cluster, as gpu::launch() does. The whole of an
/// SM's memory is shared memory meanwhile, so that kernels with much and with little of it can be on an SM together.
template <class... Parameters, class... Arguments>
void launch_team(void (*kernel)(Parameters...), int blocks, int threads, int shared_bytes, int team,
                 gpu::gpuStream_t stream, const Arguments&... arguments) {
  using gpu::check;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "preparing a product");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "preparing a product");
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(team);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = chip_facts().major < 9 ? 0 : team > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "starting a kernel");
}
#endif

}  // namespace onebit::cuda
