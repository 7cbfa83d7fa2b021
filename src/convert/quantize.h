// Makes a quantised GGUF file from an f32, f16, bf16 or q8_0 one, optionally with Hadamard-rotated matrices.
// In: a path and the wish. Out: a complete file, or nothing at all. Streams tensor by tensor, on all cores.
#pragma once

#include <cstdint>
#include <string>

#include "convert/tensor_stream.h"
#include "gguf/types.h"

namespace onebit {

struct QuantizeOptions {
  std::string in, out;
  BlockType type = BlockType::q4_0;
  bool rotate = false;        ///< rotate, quantise to q4_0 and stamp
  int threads = 0;            ///< 0: all cores
  ProgressCallback progress;  ///< return false to stop, which throws Error(runtime) and leaves no file
};

struct QuantizeResult {
  int64_t n_tensors = 0, n_rotated = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  ///< of the files
};

/// Throws Error(usage) for a type that can't be made, Error(refused) for a source that can't be used (already rotated,
/// already quantised below q8_0, values that are not finite), Error(runtime) when writing fails.
QuantizeResult quantize(const QuantizeOptions& options);

}  // namespace onebit
