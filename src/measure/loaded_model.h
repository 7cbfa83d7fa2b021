// A model on one device with room for one sequence, for measurements over texts: no sessions, no sampling, no drafter.
// In: a model file, pieces of text. Out: logits of all wanted rows.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"

namespace onebit {

struct MeasureOptions {
  std::string device = "auto";
  BackendOptions backend;
  CacheType cache = CacheType::f16;
  int64_t memory_limit = 0;  ///< bytes; 0: what the device has free
};

/// Logits [n, n_vocab] of the rows from position `pos` on.
using LogitsCallback = std::function<void(int64_t pos, std::span<const float> logits)>;

class LoadedModel {
 public:
  /// Loads. `n_ctx`: longest piece. Throws Error(out_of_memory) before loading when the device has too little.
  LoadedModel(std::unique_ptr<Model> model, const MeasureOptions& options, int64_t n_ctx);

  Model& model() { return *model_; }
  const DeviceInfo& device() const { return backend_->info(); }

  /// Takes changed marks of the weights (Weights::set_w4a4) into the compiled plan.
  void recompile();

  /// Evaluates `tokens` as a prompt from an empty state; gives the logits of the rows from `first` on, in order.
  void run(std::span<const int32_t> tokens, int64_t first, const LogitsCallback& rows);

 private:
  static constexpr int64_t kBatch = 512;  // rows of one submission

  void check_memory(const Plan& plan, int64_t limit) const;

  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  int64_t n_ctx_;
  StateSizes sizes_;
  PlanLimits limits_;
  std::unique_ptr<StatePool> states_;
  std::unique_ptr<Program> program_;
  int logits_output_ = -1;
  std::vector<int32_t> pages_, outputs_;
  std::vector<float> logits_;
};

/// Pages of a sequence of `n_tok` tokens in a pool that holds nothing else: 0, 1, ...
std::vector<int32_t> all_pages(int64_t n_tok);

}  // namespace onebit
