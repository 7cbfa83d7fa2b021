// How caches, recurrent slots and row buffers lie in device memory, for the kernels that read and write them.
#pragma once

#include <cstdint>

#include "backend/gpu/runtime.h"
#include "plan/state.h"

namespace onebit::gpu {

/// Keys [n_pages, n_head_kv, kPageTokens, d_head]; values transposed inside a page, [n_pages, n_head_kv, d_head,
/// kPageTokens], so that both are read 16 bytes at a time by the matrix units' operand order (attention_mma.cu).
struct KvMemory {
  CacheType type = CacheType::f16;
  int64_t n_pages = 0, n_head_kv = 0, d_head = 0;
  uint8_t* keys = nullptr;
  uint8_t* values = nullptr;

  int64_t page_bytes() const { return n_head_kv * kPageTokens * d_head * (type == CacheType::f16 ? 2 : 4); }
};

/// Per slot: window [n_tap-1, n_channel], S [n_v_head, d_v, d_k], tape [n_tape, n_channel + 2 * n_v_head] of (u, beta,
/// alpha); all f32.
struct DeltaMemory {
  DeltaNetState shape;
  int64_t n_slots = 0, n_tape = 0;
  float* data = nullptr;

  __host__ __device__ int64_t window_floats() const { return (shape.n_tap - 1) * shape.n_channel; }
  __host__ __device__ int64_t matrix_floats() const { return shape.d_k * shape.d_v; }  // of one head
  __host__ __device__ int64_t tape_row_floats() const { return shape.n_channel + 2 * shape.n_v_head; }
  __host__ __device__ int64_t used_floats() const {
    return window_floats() + shape.n_v_head * matrix_floats() + n_tape * tape_row_floats();
  }
  __host__ __device__ int64_t slot_floats() const { return (used_floats() + 63) / 64 * 64; }
  __host__ __device__ float* window(int64_t slot) const { return data + slot * slot_floats(); }
  __host__ __device__ float* matrix(int64_t slot, int64_t head) const {
    return window(slot) + window_floats() + head * matrix_floats();
  }
  __host__ __device__ float* tape(int64_t slot, int64_t row) const {
    return matrix(slot, shape.n_v_head) + row * tape_row_floats();
  }
};

/// [n_rows, width]
struct RowsMemory {
  int64_t n_rows = 0, width = 0;
  float* data = nullptr;
};

}  // namespace onebit::gpu
