// Which matrices keep exact 8-bit activations in prompts: measures what 4-bit inputs of each matrix alone do to a
// quantised model's predictions, and keeps those exact that buy the most per multiplication, up to a budget.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure/loaded_model.h"
#include "measure/text_chunks.h"

namespace onebit {

struct Int4Unit {
  std::string tensor;
  double share = 0;       ///< of the multiplications of all matrices in blocks, per token
  double divergence = 0;  ///< mean KL(exact || this tensor's inputs in 4 bits), nats
  bool exact = false;     ///< kept at 8 bits
};

/// Multiplications per token of a matrix; of experts those that a token uses.
int64_t cost_of(const Weight& weight, const ModelConfig& config);

/// Measures every weight that could use 4-bit activations, and marks the exact ones: at most `budget` (0..1) of the
/// multiplications of all matrices in blocks. The model is left with the marks. `progress` gets 0..1 and may throw.
std::vector<Int4Unit> choose_int4(LoadedModel& model, const TextChunks& chunks, double budget,
                                  const std::function<void(double)>& progress);

}  // namespace onebit
