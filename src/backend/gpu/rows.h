// A batch as kernels see it: its rows, sequences and pages in device memory, and which token row a row of a value
// belongs to. Written by the program (program.h) before each run.
#pragma once

#include <cstdint>

#include "backend/gpu/runtime.h"

namespace onebit::gpu {

/// plan/batch.h's Sequence with its pages as a range of BatchRows::pages.
struct DeviceSequence {
  int32_t row = 0, n_tok = 0, pos = 0;
  int32_t verify = 0;  // 1: phase verify
  int32_t slot = 0, n_commit = 0;
  int32_t first_page = 0, n_page = 0;
  float temperature = 0;
  uint64_t seed = 0;
  int64_t draw = 0;
};

/// All pointers are device memory and stay the same for the life of a program.
struct BatchRows {
  int32_t n_tok = 0, n_out = 0, n_sequence = 0;
  const int32_t* tokens = nullptr;        // [n_tok]
  const int32_t* outputs = nullptr;       // [n_out] token rows
  const int32_t* source_rows = nullptr;   // [n_tok]
  const int32_t* tap_rows = nullptr;      // [n_tok] -1: none
  const int32_t* row_sequence = nullptr;  // [n_tok]
  const int32_t* row_pos = nullptr;       // [n_tok]
  const uint8_t* int4_rows = nullptr;     // [n_tok] 1: phase prompt
  const uint8_t* int4_outputs = nullptr;  // [n_out]
  const DeviceSequence* sequences = nullptr;
  const int32_t* pages = nullptr;
};

/// From rows of a value to token rows: row r belongs to token r / multiple, or to token outputs[r / multiple].
struct RowMap {
  const int32_t* outputs = nullptr;  // null: rows are tokens
  int32_t multiple = 1;

#if defined(__CUDACC__) || defined(__HIP__)
  __device__ int32_t token(int64_t r) const {
    const auto i = static_cast<int32_t>(r / multiple);
    return outputs ? outputs[i] : i;
  }
#endif
};

}  // namespace onebit::gpu
