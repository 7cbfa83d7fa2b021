// Quantising by a model's own inputs: rounds each matrix so that its outputs stay close (gptq.h). In: a model's file,
// the second moments of its matrices' inputs. Out: the bytes of the matrices of q4_0 type, one block in memory at a
// time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "convert/tensor_encoder.h"
#include "measure/balance.h"
#include "measure/gptq.h"
#include "measure/moments.h"

namespace onebit {

struct CalibrationOptions {
  int threads = 0;  ///< 0: all cores
  GptqOptions gptq;
  double damping = 0.01;
  double balance = 0;          ///< exponent of the channel balance; 0: none
  std::function<void()> stop;  ///< called often; may throw
};

class Calibration : public TensorEncoder {
 public:
  /// `file`: the model that the moments are of. Both must outlive this.
  Calibration(const GgufFile& file, MomentSource& source, CalibrationOptions options);

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
  void balance();
  Input* input_of(const std::string& tensor);
  std::vector<float> moments_for(const Input& input, int64_t index, const std::string& tensor, bool rotated) const;
  const GptqMetric& metric_for(Input& input, const std::string& tensor, bool rotated);

  const GgufFile& file_;
  MomentSource& source_;
  CalibrationOptions options_;
  ThreadPool pool_;
  int64_t block_ = -1;
  std::vector<Input> inputs_;
  std::map<std::string, TensorFactors> factors_;
};

}  // namespace onebit
