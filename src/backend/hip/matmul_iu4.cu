#include <string_view>

#include "backend/hip/iu4_tile.h"
#include "backend/hip/matmul.h"

namespace onebit::hip {
namespace {

#if defined(__GFX11__)
/// A thread of a block on gfx11.
class Gfx11 {
 public:
  __device__ explicit Gfx11(Iu4Shared& shared) : shared_(shared) {}
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ Iu4Shared& shared() const { return shared_; }
  __device__ void barrier() const { __syncthreads(); }
  __device__ float half(uint16_t bits) const { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
  __device__ float fma(float a, float b, float c) const { return fmaf(a, b, c); }
  __device__ void wmma(const int (&a)[2], const int (&b)[2], int (&d)[8]) const {
    using Two = int __attribute__((ext_vector_type(2)));
    using Eight = int __attribute__((ext_vector_type(8)));
    Eight sums = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
    sums = __builtin_amdgcn_wmma_i32_16x16x16_iu4_w32(true, Two{a[0], a[1]}, true, Two{b[0], b[1]}, sums, false);
#pragma unroll
    for (int i = 0; i < 8; ++i) d[i] = sums[i];
  }

 private:
  Iu4Shared& shared_;
};
#endif

__global__ void __launch_bounds__(kIu4Threads) multiply(Iu4Job job) {
#if defined(__GFX11__)
  __shared__ Iu4Shared shared;
  Gfx11 machine(shared);
  multiply_iu4(machine, job, static_cast<int64_t>(blockIdx.y) * kIu4Rows,
               static_cast<int64_t>(blockIdx.x) * kIu4Columns);
#endif
}

}  // namespace

bool has_iu4() {
  int device = 0;
  gpu::gpuDeviceProp properties;
  gpu::check(hipGetDevice(&device), "reading device properties");
  gpu::check(hipGetDeviceProperties(&properties, device), "reading device properties");
  return std::string_view(properties.gcnArchName).starts_with("gfx11");
}

void matmul_iu4(const gpu::Product& product, const gpu::DeviceActs& acts, gpu::gpuStream_t stream) {
  const gpu::DeviceWeight& weight = *product.weight;
  const Iu4Job job{weight.data,  acts.nibbles, acts.scales,      product.add,
                   product.y,    weight.n_out, weight.n_in / 32, acts.n_row};
  const dim3 grid(static_cast<unsigned>((weight.n_out + kIu4Columns - 1) / kIu4Columns),
                  static_cast<unsigned>((acts.n_row + kIu4Rows - 1) / kIu4Rows));
  gpu::launch(multiply, grid, dim3(kIu4Threads), 0, stream, job);
}

}  // namespace onebit::hip
