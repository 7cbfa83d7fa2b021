// Which matrices keep exact 8-bit activations in prompts: measures what 4-bit inputs of each matrix alone do to a
// quantised model's predictions (or reads what was measured earlier), and keeps those exact that buy the most per
// multiplication, up to a budget.
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

/// Every weight that could use 4-bit activations, nothing measured yet.
std::vector<Int4Unit> int4_units(const Model& model);

/// Measures all of int4_units(). The model is left without W4A4. `progress` gets 0..1 and may throw.
std::vector<Int4Unit> measure_int4(LoadedModel& model, const TextChunks& chunks,
                                   const std::function<void(double)>& progress);

/// What an earlier measurement left in the file. Throws Error(refused) when there is none, or not of all.
std::vector<Int4Unit> measured_int4(const Model& model);

/// Marks the exact ones: at most `budget` (0..1) of the multiplications of all matrices in blocks.
void keep_exact(std::vector<Int4Unit>& units, double budget);

}  // namespace onebit
