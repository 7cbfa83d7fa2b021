// Perplexity of a model on a text, and how far its predictions are from saved ones. The protocol is the usual one:
// chunks of n_ctx tokens, each from an empty state, rows n_ctx/2 .. n_ctx-2 scored against the token behind them.
#pragma once

#include <functional>
#include <string>

#include "measure/loaded_model.h"
#include "measure/logits_file.h"
#include "measure/text_chunks.h"

namespace onebit {

struct Evaluation {
  int64_t n_chunk = 0, n_tok = 0;  ///< n_tok: scored rows
  double ppl = 0, ppl_err = 0;     ///< err: standard error of the mean over rows, as in the other figures
  bool compared = false;           ///< against saved logits
  double kld_mean = 0, kld_err = 0, kld_p99 = 0;  ///< KL(saved || model) in nats
  double same_top = 0, same_top_err = 0;          ///< share of rows with the same most likely token, 0..1
};

struct EvaluationFiles {
  std::string save, against;  ///< paths, or empty
};

/// `progress` gets the share of the work done and may throw. Throws Error(runtime) when saving fails.
Evaluation evaluate(LoadedModel& model, const TextChunks& chunks, const EvaluationFiles& files,
                    const std::function<void(double)>& progress);

/// -ln p of `next` under a row of logits.
double row_nll(std::span<const float> logits, int32_t next);

/// KL(p || softmax(logits)) with p saved as codes; `same_top`: whether both have the same most likely token.
double row_divergence(const CodeTable& table, std::span<const uint16_t> codes, std::span<const float> logits,
                      bool& same_top);

}  // namespace onebit
