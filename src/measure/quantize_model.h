// Quantising with what running the model tells: rounding by second moments of inputs (GPTQ), and the choice of matrices
// that keep exact activations. In: a file, a text. Out: a file, or nothing at all.
#pragma once

#include <functional>
#include <string>

#include "convert/quantize.h"
#include "measure/int4_budget.h"
#include "measure/loaded_model.h"

namespace onebit {

struct ModelQuantizeOptions {
  QuantizeOptions file;         ///< what is made; its encoder and choice of tensors are filled in here
  MeasureOptions measure;       ///< device that runs the model
  std::string text, text_name;  ///< what the model reads
  int64_t n_ctx = 512;
  int64_t n_chunks = 128;  ///< most chunks that the statistics are taken from
  bool gptq = false;
  std::string hessians;          ///< with gptq: path of saved second moments, or empty: they are taken from the text
  double balance = 0;            ///< exponent of the channel balance, with gptq
  std::optional<double> budget;  ///< share of multiplications that may keep exact activations, 0..1
  int64_t n_budget_chunks = 4;   ///< chunks that each matrix is measured on
  std::function<void()> stop;    ///< called often, may throw
  std::function<void(double)> on_budget;  ///< share of the measurements done
};

struct ModelQuantizeResult {
  QuantizeResult file;
  std::vector<Int4Unit> units;  ///< what was measured, with a budget
};

/// A file that is rotated already, given with a budget and without gptq, is copied with a new list; without a text from
/// what was measured when its present list was made.
/// Throws as quantize() does, and Error(refused) for a model that can't be run.
ModelQuantizeResult quantize_model(ModelQuantizeOptions options);

}  // namespace onebit
