// Second moments of what a block's matrices read: sums of x x' over the rows of a text. In: a model and a text. Out:
// the moments of one block at a time.
#pragma once

#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "measure/block_plan.h"
#include "measure/block_walk.h"

namespace onebit {

/// Second moments of one input: sums of x x' over rows, of each expert where there are experts.
struct Moments {
  int64_t k = 0;
  std::vector<std::vector<float>> sums;  ///< [n_matrix][k, k], the upper triangle; empty: no rows
  std::vector<int64_t> counts;           ///< [n_matrix] rows

  /// None yet.
  static Moments none(int64_t k, int64_t n_matrix);
  /// Adds rows x [n, k] of matrix `index`.
  void add(int64_t index, const float* x, int64_t n, ThreadPool& pool);
  /// The mean of matrix `index`; an expert that saw few rows leans on the average of all.
  std::vector<float> mean(int64_t index) const;
};

struct InputMoments {
  InputGroup group;
  Moments moments;  ///< none where `has_moments` is false
};

/// Whether moments of an input are kept: only those of whole blocks of 32 channels are of use.
bool has_moments(const InputGroup& group);

/// Where the moments come from: a text (here) or a file (hessian_file.h).
class MomentSource {
 public:
  virtual ~MomentSource() = default;
  virtual const BlockPlan& blocks() const = 0;
  /// Those of block `i`; blocks are asked for in ascending order, each once.
  virtual std::vector<InputMoments> block(int64_t i) = 0;
};

/// Runs the model over a text, block by block.
class TextMoments : public MomentSource {
 public:
  /// `stop` is called often and may throw. `model` and `chunks` must outlive this.
  TextMoments(Model& model, const TextChunks& chunks, const MeasureOptions& options, std::function<void()> stop);

  const BlockPlan& blocks() const override { return walk_.blocks(); }
  std::vector<InputMoments> block(int64_t i) override;

 private:
  void add(const InputRows& rows, InputMoments& to);

  ThreadPool pool_;
  BlockWalk walk_;
  std::function<void()> stop_;
  std::vector<float> gathered_;
};

}  // namespace onebit
