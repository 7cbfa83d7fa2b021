// Makes a quantised GGUF file from an f32, f16, bf16 or q8_0 one, optionally with Hadamard-rotated matrices.
// In: a path and the wish. Out: a complete file, or nothing at all. Streams tensor by tensor, on all cores.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "convert/tensor_encoder.h"
#include "convert/tensor_stream.h"
#include "gguf/types.h"

namespace onebit {

/// Which tensors use 4-bit activations for prompts, and what each of the measured ones costs.
struct Int4List {
  std::vector<std::string> tensors;   ///< onebit.w4a4_tensors
  std::vector<std::string> measured;  ///< onebit.w4a4_measured
  std::vector<float> divergence;      ///< [measured] onebit.w4a4_divergence, nats
};

struct QuantizeOptions {
  std::string in, out;
  BlockType type = BlockType::q4_0;
  Finer finer = Finer::none;                              ///< of q4_k and q5_k files only
  std::vector<std::pair<std::string, BlockType>> wishes;  ///< see Mixture
  bool rotate = false;                                    ///< rotate, quantise to q4_0 and stamp
  std::string importance;                                 ///< path of an importance matrix, or empty
  bool search = true;  ///< for scales of least error; else each type's plain rule, without importances and encoder
  TensorEncoder* encoder = nullptr;  ///< may be null; tensors then go by block, those outside of blocks first
  /// Sees the complete file and names the tensors that use 4-bit activations for prompts. The file is then written a
  /// second time, so it needs its size twice while this goes on. Empty: no such list.
  std::function<Int4List(const GgufFile& made)> choose_int4;
  int threads = 0;            ///< 0: all cores
  ProgressCallback progress;  ///< return false to stop, which throws Error(runtime) and leaves no file
};

struct QuantizeResult {
  int64_t n_tensors = 0, n_rotated = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  ///< of the files
  std::optional<Int4List> int4;          ///< the list that was stored, if one was asked for
};

/// Refuses a source that making `type` of it would spoil: rotated already, or coarser than q8_0.
void check_source(const GgufFile& file, BlockType type);

/// A copy of `made` at `path` with this list.
void write_with_list(const GgufFile& made, const std::string& path, const Int4List& list);

/// Throws Error(usage) for a type that can't be made, Error(refused) for a source that can't be used (already rotated,
/// already quantised below q8_0, values that are not finite), Error(runtime) when writing fails.
QuantizeResult quantize(const QuantizeOptions& options);

}  // namespace onebit
