// Importance matrices: how large each input channel of a matrix is on some text, in llama.cpp's GGUF layout. In: such a
// file. Out: weights for the squared errors of a row's elements.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gguf/file.h"

namespace onebit {

/// Mean squares of a matrix's input channels, for each expert where there are experts.
struct ChannelSquares {
  int64_t k = 0;            ///< channels
  std::vector<float> mean;  ///< [n_matrix, k]
  int64_t n_matrix() const { return static_cast<int64_t>(mean.size()) / k; }
};

class Importance {
 public:
  /// Throws Error(refused) when the file is no importance matrix or contradicts itself.
  static Importance read(const std::string& path);

  /// The squares for `tensor`; null when the file does not know it. Refused when the sizes differ.
  ChannelSquares* find(const TensorInfo& tensor);
  size_t size() const { return by_tensor_.size(); }

 private:
  std::string path_;
  std::map<std::string, ChannelSquares> by_tensor_;
};

namespace imatrix {
inline constexpr const char* kType = "imatrix";                    // general.type
inline constexpr const char* kDatasets = "imatrix.datasets";       // string array
inline constexpr const char* kChunkCount = "imatrix.chunk_count";  // u32
inline constexpr const char* kChunkSize = "imatrix.chunk_size";    // u32, tokens
inline constexpr const char* kSums = ".in_sum2";                   // f32 [n_matrix, k], sums of squares
inline constexpr const char* kCounts = ".counts";                  // f32 [n_matrix, 1], rows summed
}  // namespace imatrix

/// Weights of the squared errors of a row x [k] whose channels have these mean squares: large elements count more.
void error_weights(const float* x, int64_t k, const float* squares, float* weights);

}  // namespace onebit
