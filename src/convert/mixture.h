// Which type each tensor of a quantised file takes. In: a tensor of the source file and the wish. Out: type and
// rotation. The only place with this rule; encoding is in quantize.cpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gguf/file.h"

namespace onebit {

/// How many of the matrices that lose most are finer than the rest of a q4_k or q5_k file: the choice of llama.cpp's
/// files Q4_K_S and Q5_K_S (small) and Q4_K_M and Q5_K_M (medium).
enum class Finer : uint8_t { none, small, medium };

struct Mixture {
  BlockType type = BlockType::q4_0;  ///< of the ordinary matrices
  bool rotate = false;               ///< Hadamard-rotated q4_0 matrices; `type` is q4_0 then
  bool tied = false;                 ///< the model has no output matrix: token_embd serves as one
  std::vector<std::pair<std::string, BlockType>> wishes = {};  ///< tensors whose name contains this take this type
  Finer finer = Finer::none;
  int64_t n_block = 0;                     ///< of the model, with its drafting head
  std::vector<int64_t> value_blocks = {};  ///< those with a matrix that makes attention's values, ascending
};

/// Fills in what the mixture must know about the model: its blocks, and whether the embedding is the output.
void describe_model(const GgufFile& file, Mixture& mixture);

struct TensorChoice {
  BlockType type;
  bool rotated;
};

/// The choice for one tensor. Vectors, norms, routers and convolutions stay f32; integer tensors stay as they are.
/// Throws Error(refused) when a matrix that must be rotated has rows of no multiple of 32.
TensorChoice choose_type(const Mixture& mixture, const TensorInfo& tensor, const std::string& file);

}  // namespace onebit
