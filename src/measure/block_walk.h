// Runs a model over a text one block at a time, so that only one block's weights and inputs are in memory: the hidden
// states of all tokens are kept on the host and go through block after block. In: a model and chunks of text. Out:
// what every matrix of the block at hand reads.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "measure/block_plan.h"
#include "measure/loaded_model.h"
#include "measure/text_chunks.h"

namespace onebit {

/// The inputs of one run: x [n_tok * multiple, k]; ids [n_tok, n_used] for experts. `multiple` is 1, or n_used where
/// every (token, expert) has a row of its own.
struct InputRows {
  std::span<const float> x;
  std::span<const int32_t> ids;
  int64_t n_row = 0, multiple = 1;
};

using InputCallback = std::function<void(const InputGroup& group, const InputRows& rows)>;

class BlockWalk {
 public:
  /// `model` must be opened without W4A4. Throws Error(out_of_memory) when the hidden states don't fit.
  BlockWalk(Model& model, const TextChunks& chunks, const MeasureOptions& options);

  const BlockPlan& blocks() const { return blocks_; }
  /// Index of the next block to run.
  int64_t next() const { return next_; }
  /// Runs the next block; `inputs` is called for every group and chunk. `stop` is called between chunks, may throw.
  void run(const InputCallback& inputs, const std::function<void()>& stop);

 private:
  const Plan& plan() const { return blocks_.plan(); }
  void look_up_embeddings();
  Value entry_of(int64_t block) const;

  Model& model_;
  const TextChunks& chunks_;
  MeasureOptions options_;
  BlockPlan blocks_;
  std::vector<float> hidden_;  // [n_tok, n_embd]
  int64_t next_ = 0;
};

}  // namespace onebit
