// Second moments of a model's inputs in a GGUF file, so that one run over a text serves many quantisations. In: a
// model and a text, or such a file. Out: such a file, or the moments of one block at a time.
//
// Each input is stored once, under the name of the first matrix that reads it: the sums as upper triangles row by row,
// of the inputs as the model makes them (not rotated, not balanced), and how many rows were summed.
#pragma once

#include <functional>
#include <string>

#include "gguf/file.h"
#include "measure/moments.h"

namespace onebit {

namespace hessian {
inline constexpr const char* kType = "hessian";                       // general.type
inline constexpr const char* kArchitecture = "hessian.architecture";  // string, of the model
inline constexpr const char* kBlockCount = "hessian.block_count";     // u32, of the model
inline constexpr const char* kHadamard = "hessian.hadamard";          // i32, size of the inputs' rotation; 0: none
inline constexpr const char* kDatasets = "hessian.datasets";          // string array
inline constexpr const char* kChunkCount = "hessian.chunk_count";     // u32
inline constexpr const char* kChunkSize = "hessian.chunk_size";       // u32, tokens
inline constexpr const char* kSums = ".in_moments";                   // f32 [n_matrix, k (k + 1) / 2]
inline constexpr const char* kCounts = ".in_counts";                  // i64 [n_matrix], rows summed
}  // namespace hessian

/// Writes `path`, one block in memory at a time. `dataset` names the text in the file. `progress` gets 0..1 and may
/// throw. Returns the number of inputs.
int64_t write_hessians(Model& model, const TextChunks& chunks, const MeasureOptions& options,
                       const std::string& dataset, const std::string& path,
                       const std::function<void(double)>& progress);

class HessianFile : public MomentSource {
 public:
  /// Throws Error(refused) when the file is none of `model`: another architecture, other inputs, other sizes, rotated.
  HessianFile(const std::string& path, Model& model);

  const BlockPlan& blocks() const override { return blocks_; }
  /// Throws Error(refused) for values that can't be moments.
  std::vector<InputMoments> block(int64_t i) override;

 private:
  void check(const InputGroup& group, size_t& n_known) const;
  const TensorInfo* find(const InputGroup& group, const char* suffix) const;

  GgufFile file_;
  BlockPlan blocks_;
};

}  // namespace onebit
