// Quantising with a model's own inputs: runs the source model over a text block by block, and rounds each matrix so
// that its outputs stay close (gptq.h). In: a model, a text. Out: the bytes of the matrices of q4_0 type, one block in
// memory at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "convert/tensor_encoder.h"
#include "measure/balance.h"
#include "measure/block_walk.h"
#include "measure/gptq.h"

namespace onebit {

struct CalibrationOptions {
  MeasureOptions measure;
  GptqOptions gptq;
  double damping = 0.01;
  double balance = 0;          ///< exponent of the channel balance; 0: none
  std::function<void()> stop;  ///< called often; may throw
};

/// Second moments of one input: sums of x x' over rows, of each expert where there are experts.
struct Moments {
  int64_t k = 0;
  std::vector<std::vector<float>> sums;  ///< [n_matrix][k, k], the upper triangle
  std::vector<int64_t> counts;           ///< [n_matrix] rows

  /// Adds rows x [n, k] of matrix `index`.
  void add(int64_t index, const float* x, int64_t n, ThreadPool& pool);
  /// The mean of matrix `index`; an expert that saw few rows leans on the average of all.
  std::vector<float> mean(int64_t index) const;
};

class Calibration : public TensorEncoder {
 public:
  Calibration(Model& model, const TextChunks& chunks, CalibrationOptions options);

  void begin_block(int64_t block) override;
  void change_rows(const TensorInfo& tensor, int64_t begin, int64_t end, float* rows) const override;
  std::vector<uint8_t> encode(const TensorInfo& tensor, const TensorChoice& choice) override;

 private:
  struct Input {
    InputGroup group;
    Moments moments;
    std::unique_ptr<GptqMetric> metric;  ///< of a group without experts, once it was needed
    bool metric_rotated = false;
  };
  void collect(const InputGroup& group, const InputRows& rows);
  void balance();
  Input* input_of(const std::string& tensor);
  std::vector<float> moments_for(const Input& input, int64_t index, const std::string& tensor, bool rotated) const;
  const GptqMetric& metric_for(Input& input, const std::string& tensor, bool rotated);

  Model& model_;
  CalibrationOptions options_;
  ThreadPool pool_;
  BlockWalk walk_;
  int64_t block_ = -1;
  std::vector<Input> inputs_;
  std::map<std::string, TensorFactors> factors_;
  std::vector<float> gathered_;
};

}  // namespace onebit
