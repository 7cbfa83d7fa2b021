#include "backend/gpu/device.cuh"
#include "backend/gpu/kernels.h"

namespace onebit::gpu {
namespace {

constexpr int kThreads = 256;

/// y[i] = f(i, column, row) for a [n_row, width] result; rows over grid x, columns over grid y.
template <class F>
__global__ void by_row(F f, int64_t width) {
  wait_for_previous();
  const int64_t r = blockIdx.x;
  for (int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; c < width;
       c += static_cast<int64_t>(gridDim.y) * kThreads) {
    f(r, c);
  }
}

template <class F>
void run_rows(F f, int64_t n_row, int64_t width, gpuStream_t stream) {
  if (n_row == 0 || width == 0) return;
  const unsigned columns = blocks_for(width, kThreads);
  const dim3 grid(static_cast<unsigned>(n_row), columns < 64 ? columns : 64);
  launch(by_row<F>, grid, dim3(kThreads), 0, stream, f, width);
}

/// f(i) for i < n where f takes four consecutive elements at once, and the last n % 4 by themselves.
template <class F>
__global__ void by_four(F f, int64_t n) {
  wait_for_previous();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i + 4 <= n) {
    f.four(i);
  } else {
    for (int64_t j = i; j < n; ++j) f.one(j);
  }
}

template <class F>
void run_four(F f, int64_t n, gpuStream_t stream) {
  if (n > 0) launch(by_four<F>, dim3(blocks_for(n, 4 * kThreads)), dim3(kThreads), 0, stream, f, n);
}

__device__ inline float4& four_at(float* x) { return *reinterpret_cast<float4*>(x); }
__device__ inline float4 four_at(const float* x) { return *reinterpret_cast<const float4*>(x); }

struct Add {
  const float *a, *b;
  float* y;
  __device__ void one(int64_t i) const { y[i] = a[i] + b[i]; }
  __device__ void four(int64_t i) const {
    const float4 p = four_at(a + i), q = four_at(b + i);
    four_at(y + i) = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
  }
};

struct Swiglu {
  const float *gate, *up;
  float* y;
  __device__ void one(int64_t i) const { y[i] = silu_of(gate[i]) * up[i]; }
  __device__ void four(int64_t i) const {
    const float4 g = four_at(gate + i), u = four_at(up + i);
    four_at(y + i) = make_float4(silu_of(g.x) * u.x, silu_of(g.y) * u.y, silu_of(g.z) * u.z, silu_of(g.w) * u.w);
  }
};

struct Softcap {
  const float* x;
  float* y;
  float scale, cap;
  __device__ float of(float v) const {
    const float scaled = v * scale;
    return cap > 0 ? cap * tanhf(scaled / cap) : scaled;
  }
  __device__ void one(int64_t i) const { y[i] = of(x[i]); }
  __device__ void four(int64_t i) const {
    const float4 v = four_at(x + i);
    four_at(y + i) = make_float4(of(v.x), of(v.y), of(v.z), of(v.w));
  }
};

struct SigmoidMul {
  const float *x, *gate;
  float* y;
  int64_t width, gate_width;
  __device__ void operator()(int64_t r, int64_t c) const {
    y[r * width + c] = x[r * width + c] * sigmoid_of(gate[gate_width == 1 ? r : r * width + c]);
  }
};

struct Slice {
  const float* x;
  float* y;
  int64_t width_in, width_out, stride, offset, length;
  __device__ void operator()(int64_t r, int64_t c) const {
    y[r * width_out + c] = x[r * width_in + c / length * stride + offset + c % length];
  }
};

struct Gather {
  const float* x;
  const int32_t* rows;
  float* y;
  int64_t width;
  __device__ void operator()(int64_t r, int64_t c) const { y[r * width + c] = x[rows[r] * width + c]; }
};

struct Store {
  const float* x;
  const int32_t* to;
  float* rows;
  int64_t width, row_width, offset;
  __device__ void operator()(int64_t r, int64_t c) const {
    if (to[r] >= 0) rows[to[r] * row_width + offset + c] = x[r * width + c];
  }
};

struct Load {
  const float* rows;
  const int32_t* source;
  float* y;
  int64_t width;
  __device__ void operator()(int64_t r, int64_t c) const {
    const float x = rows[source[r] * width + c];
    y[r * width + c] = isnan(x) ? 0.0f : fminf(fmaxf(x, -65504.0f), 65504.0f);
  }
};

struct Combine {
  const float *x, *weights, *add;
  float* y;
  int64_t n_used, width;
  __device__ void operator()(int64_t r, int64_t c) const {
    float sum = 0;
    for (int64_t j = 0; j < n_used; ++j) sum += weights[r * n_used + j] * x[(r * n_used + j) * width + c];
    y[r * width + c] = add ? add[r * width + c] + sum : sum;
  }
};

struct Conv {
  const float *x, *delta, *base;
  float* y;
  BatchRows rows;
  int64_t width, n_group, group, n_tap, side;
  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t i = r - rows.sequences[rows.row_sequence[r]].row;  // row in its sequence
    float sum = 0;
    for (int64_t t = 0; t < n_tap && t <= i; ++t) {
      const int64_t tap = side * n_tap + t;
      const float coefficient = base[tap * width + c] + delta[(r * 2 * n_tap + tap) * n_group + c / group];
      sum += coefficient * x[(r - t) * width + c];
    }
    y[r * width + c] = sum;
  }
};

__global__ void wait_cycles(int64_t cycles) {
  wait_for_previous();
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

}  // namespace

void hold(int64_t cycles, gpuStream_t stream) { launch(wait_cycles, dim3(1), dim3(1), 0, stream, cycles); }

void add(const float* a, const float* b, float* y, int64_t n, gpuStream_t stream) { run_four(Add{a, b, y}, n, stream); }

void sigmoid_mul(const float* x, const float* gate, float* y, int64_t n_row, int64_t width, int64_t gate_width,
                 gpuStream_t stream) {
  run_rows(SigmoidMul{x, gate, y, width, gate_width}, n_row, width, stream);
}

void swiglu(const float* gate, const float* up, float* y, int64_t n, gpuStream_t stream) {
  run_four(Swiglu{gate, up, y}, n, stream);
}

void softcap(const float* x, float* y, int64_t n, const SoftcapParams& params, gpuStream_t stream) {
  run_four(Softcap{x, y, params.scale, params.cap}, n, stream);
}

void slice_heads(const float* x, float* y, int64_t n_row, int64_t width, const SliceParams& params,
                 gpuStream_t stream) {
  const int64_t width_out = params.n_group * params.length;
  run_rows(Slice{x, y, width, width_out, params.stride, params.offset, params.length}, n_row, width_out, stream);
}

void gather_rows(const float* x, const int32_t* rows, float* y, int64_t n_row, int64_t width, gpuStream_t stream) {
  run_rows(Gather{x, rows, y, width}, n_row, width, stream);
}

void store_rows(const float* x, const int32_t* tap_rows, int64_t n_row, int64_t width, const RowsMemory& memory,
                int64_t offset, gpuStream_t stream) {
  run_rows(Store{x, tap_rows, memory.data, width, memory.width, offset}, n_row, width, stream);
}

void load_rows(const RowsMemory& memory, const int32_t* source_rows, float* y, int64_t n_row, gpuStream_t stream) {
  run_rows(Load{memory.data, source_rows, y, memory.width}, n_row, memory.width, stream);
}

void combine_experts(const float* x, const float* weights, const float* add, float* y, int64_t n_row, int64_t n_used,
                     int64_t width, gpuStream_t stream) {
  run_rows(Combine{x, weights, add, y, n_used, width}, n_row, width, stream);
}

void block_conv(const float* x, const float* delta, const float* base, float* y, const BatchRows& rows, int64_t width,
                const BlockConvParams& params, gpuStream_t stream) {
  run_rows(Conv{x, delta, base, y, rows, width, width / params.group, params.group, params.n_tap, params.side},
           rows.n_tok, width, stream);
}

}  // namespace onebit::gpu
