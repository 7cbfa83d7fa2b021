// The rotation of "H32" files: the transform itself and the one list of tensors that it applies to.
// In: rows of f32, tensor names, an opened file. Out: rotated rows; which tensors of a file hold rotated weights.
#pragma once

#include <cstdint>
#include <string_view>

#include "gguf/file.h"

namespace onebit {

/// Elements along K that one transform covers, and the only stamp value that is understood.
inline constexpr int64_t kHadamardBlock = 32;

/// Replaces each 32 consecutive elements of x [n] (n a multiple of 32) by H x, H the Sylvester matrix over sqrt(32).
/// Five butterfly stages with strides 1, 2, 4, 8, 16 (lower a+b, upper a-b), then one multiply: the order is part of
/// the format, backends reproduce it bit for bit. H is its own inverse.
void hadamard32(float* x, int64_t n);

/// True when a tensor of this name is rotated in a stamped file, provided that its type is q4_0:
/// the attention, feed-forward and expert matrices of blocks, and a drafter's fc.weight.
bool rotates(std::string_view tensor_name);

/// The stamp of a file: 0 when there is none, 32 when its q4_0 matrices are rotated. Any other value is refused.
int64_t hadamard_stamp(const GgufFile& file);

/// Refuses a stamped file that holds a q4_0 tensor which is neither rotated nor the token_embd.weight row lookup.
void check_hadamard_tensors(const GgufFile& file);

/// True when the weights of `tensor` are stored rotated, given the stamp of its file.
bool is_rotated(const TensorInfo& tensor, int64_t stamp);

}  // namespace onebit
