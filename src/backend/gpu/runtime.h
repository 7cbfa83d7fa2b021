// The one place where CUDA and HIP differ by name: gpu* types and functions that all sources of this folder use, the
// few warp primitives that are spelled differently, and the check that turns a failed call into an Error.
#pragma once

#include <cstdint>

#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#define ONEBIT_GPU(name) hip##name
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define ONEBIT_GPU(name) cuda##name
#endif

namespace onebit::gpu {

using gpuError_t = ONEBIT_GPU(Error_t);
using gpuStream_t = ONEBIT_GPU(Stream_t);
using gpuEvent_t = ONEBIT_GPU(Event_t);
using gpuGraph_t = ONEBIT_GPU(Graph_t);
using gpuGraphExec_t = ONEBIT_GPU(GraphExec_t);
#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
using gpuDeviceProp = hipDeviceProp_t;
#else
using gpuDeviceProp = cudaDeviceProp;
#endif
inline constexpr gpuError_t gpuSuccess = ONEBIT_GPU(Success);
inline constexpr gpuError_t gpuErrorPeerAccessAlreadyEnabled = ONEBIT_GPU(ErrorPeerAccessAlreadyEnabled);
inline constexpr gpuError_t gpuErrorMemoryAllocation =
#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
    hipErrorOutOfMemory;
#else
    cudaErrorMemoryAllocation;
#endif

/// Throws Error(out_of_memory) when the device has no memory left, Error(runtime) for any other failure. `what` names
/// what was being done: "copying weights".
void check(gpuError_t error, const char* what);
/// check() of the launches since the last one.
void check_launch(const char* what);

/// Most shared memory that a block may ask for.
inline int64_t most_shared_bytes(const gpuDeviceProp& device) {
#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
  return static_cast<int64_t>(device.sharedMemPerBlock);
#else
  return static_cast<int64_t>(device.sharedMemPerBlockOptin);
#endif
}

}  // namespace onebit::gpu

#define gpuSetDevice ONEBIT_GPU(SetDevice)
#define gpuGetDeviceProperties ONEBIT_GPU(GetDeviceProperties)
#define gpuMemGetInfo ONEBIT_GPU(MemGetInfo)
#define gpuMalloc ONEBIT_GPU(Malloc)
#define gpuFree ONEBIT_GPU(Free)
#define gpuMemcpyAsync ONEBIT_GPU(MemcpyAsync)
#define gpuMemsetAsync ONEBIT_GPU(MemsetAsync)
#define gpuMemcpyHostToDevice ONEBIT_GPU(MemcpyHostToDevice)
#define gpuMemcpyDeviceToHost ONEBIT_GPU(MemcpyDeviceToHost)
#define gpuMemcpyDeviceToDevice ONEBIT_GPU(MemcpyDeviceToDevice)
#define gpuStreamCreateWithFlags ONEBIT_GPU(StreamCreateWithFlags)
#define gpuStreamNonBlocking ONEBIT_GPU(StreamNonBlocking)
#define gpuStreamDestroy ONEBIT_GPU(StreamDestroy)
#define gpuStreamSynchronize ONEBIT_GPU(StreamSynchronize)
#define gpuStreamWaitEvent ONEBIT_GPU(StreamWaitEvent)
#define gpuMemcpyPeerAsync ONEBIT_GPU(MemcpyPeerAsync)
#define gpuDeviceCanAccessPeer ONEBIT_GPU(DeviceCanAccessPeer)
#define gpuDeviceEnablePeerAccess ONEBIT_GPU(DeviceEnablePeerAccess)
#define gpuEventCreateWithFlags ONEBIT_GPU(EventCreateWithFlags)
#define gpuEventDisableTiming ONEBIT_GPU(EventDisableTiming)
#define gpuEventDestroy ONEBIT_GPU(EventDestroy)
#define gpuEventDefault ONEBIT_GPU(EventDefault)
#define gpuEventElapsedTime ONEBIT_GPU(EventElapsedTime)
#define gpuEventRecord ONEBIT_GPU(EventRecord)
#define gpuEventSynchronize ONEBIT_GPU(EventSynchronize)
#define gpuStreamBeginCapture ONEBIT_GPU(StreamBeginCapture)
#define gpuStreamCaptureModeRelaxed ONEBIT_GPU(StreamCaptureModeRelaxed)
#define gpuStreamEndCapture ONEBIT_GPU(StreamEndCapture)
#define gpuGraphLaunch ONEBIT_GPU(GraphLaunch)
#define gpuGraphDestroy ONEBIT_GPU(GraphDestroy)
#define gpuGraphExecDestroy ONEBIT_GPU(GraphExecDestroy)
#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#define gpuHostMalloc(pointer, bytes) hipHostMalloc(pointer, bytes, hipHostMallocDefault)
#define gpuHostFree hipHostFree
#define gpuGraphInstantiate(exec, graph) hipGraphInstantiate(exec, graph, nullptr, nullptr, 0)
#else
#define gpuHostMalloc cudaMallocHost
#define gpuHostFree cudaFreeHost
#define gpuGraphInstantiate(exec, graph) cudaGraphInstantiate(exec, graph, 0)
#endif
#define gpuGetLastError ONEBIT_GPU(GetLastError)
#define gpuFuncSetAttribute ONEBIT_GPU(FuncSetAttribute)
#define gpuFuncAttributeMaxDynamicSharedMemorySize ONEBIT_GPU(FuncAttributeMaxDynamicSharedMemorySize)

#if defined(__CUDACC__) || defined(__HIP__)

/// Declares `name` as the block's shared memory whose size is given at the launch.
#if defined(__HIP__)
#define GPU_DYNAMIC_SHARED(type, name) HIP_DYNAMIC_SHARED(type, name)
#else
#define GPU_DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#endif

namespace onebit::gpu {

/// Lets the next kernel's blocks come up as soon as all blocks of this one have called it (or ended).
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Every kernel calls this before it reads or writes memory that other kernels write (weights it may read earlier):
/// launch() lets a kernel's blocks come up while those before it still run. They come up in order, and each waits for
/// the one before it to end, so all that came earlier has ended too.
__device__ inline void wait_for_previous() {
  let_next_start();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Starts `kernel`, all of whose blocks call wait_for_previous(). Launches that are not made by this function wait for
/// everything before them.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, gpuStream_t stream,
            Arguments&&... arguments) {
#if defined(__HIP__)
  hipLaunchKernelGGL(kernel, grid, block, static_cast<uint32_t>(shared_bytes), stream,
                     static_cast<Parameters>(arguments)...);
#else
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "starting a kernel");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "starting a kernel");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "starting a kernel");
#endif
}

/// Threads that run in step; all kernels are written for 32 (NVIDIA, and RDNA in wave32).
inline constexpr int kWarp = 32;

template <class T>
__device__ inline T shfl_xor(T x, int mask) {
#if defined(__HIP__)
  return __shfl_xor(x, mask, kWarp);
#else
  return __shfl_xor_sync(0xffffffffu, x, mask);
#endif
}
template <class T>
__device__ inline T shfl(T x, int lane) {
#if defined(__HIP__)
  return __shfl(x, lane, kWarp);
#else
  return __shfl_sync(0xffffffffu, x, lane);
#endif
}
/// Brings the cache line at p nearer.
__device__ inline void prefetch(const void* p) {
#if defined(__HIP__)
  __builtin_prefetch(p);
#else
  asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
#endif
}
/// Makes what lanes of the warp wrote to shared memory visible to the others.
__device__ inline void sync_warp() {
#if defined(__HIP__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}
/// Sum over the warp, in every lane; the order of additions is fixed.
template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shfl_xor(x, mask);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x = fmaxf(x, shfl_xor(x, mask));
  return x;
}
/// a, b: four int8 each; c + their dot product.
__device__ inline int dot4(int a, int b, int c) {
#if defined(__HIP__)
#if __has_builtin(__builtin_amdgcn_sudot4)
  return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#else
  return __builtin_amdgcn_sdot4(a, b, c, false);
#endif
#else
  return __dp4a(a, b, c);
#endif
}

}  // namespace onebit::gpu
#endif
