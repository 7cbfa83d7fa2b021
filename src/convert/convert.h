// Makes a GGUF file from a Hugging Face checkpoint: a target model, its MTP blocks, or a DFlash drafter.
// In: a folder with config.json, safetensors, possibly a tokenizer. Out: a complete file, or nothing at all.
#pragma once

#include <cstdint>
#include <string>

#include "convert/tensor_stream.h"
#include "gguf/types.h"

namespace onebit {

struct ConvertOptions {
  std::string in, out;               ///< a folder; a file
  BlockType type = BlockType::bf16;  ///< f32, f16, bf16 or q8_0
  int threads = 0;                   ///< 0: all cores
  ProgressCallback progress;         ///< return false to stop, which throws Error(runtime) and leaves no file
};

struct ConvertResult {
  std::string architecture;
  int64_t n_tensors = 0, n_mtp = 0;
  bool tokenizer = false;  ///< whether the folder had one
  uint64_t bytes_out = 0;
};

/// Throws Error(usage) for another type, Error(refused) for a checkpoint that can't be converted (naming the file and
/// the field or tensor), Error(runtime) when writing fails.
ConvertResult convert(const ConvertOptions& options);

}  // namespace onebit
