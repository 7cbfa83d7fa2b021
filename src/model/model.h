// A target model: its file, numbers, weights and states, and the plan that computes it. No kernels, no devices.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "model/config.h"
#include "model/weights.h"
#include "plan/plan.h"

namespace onebit {

/// Hidden states that a drafter reads: after each listed block (counted from 1) the residual stream is stored in
/// `rows`, one after another along the columns.
struct Taps {
  std::vector<int64_t> layers;
  const State* rows = nullptr;
  bool normed = false;  // instead of them, the state behind the final norm
};

class Model {
 public:
  /// Opens and checks a file: architecture, numbers, every tensor of the trunk. Throws Error(refused).
  static std::unique_ptr<Model> open(const std::string& path, const W4a4Choice& choice);
  /// From an open file, e.g. one in memory.
  Model(GgufFile file, const W4a4Choice& choice);
  Model(const Model&) = delete;

  const GgufFile& file() const { return file_; }
  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  /// Caches and recurrent states of the trunk.
  std::vector<const State*> states() const;

  /// Tokens to logits: outputs "logits" [out, n_vocab] and "next" [out, 1] (the argmax). One plan for prefill, decode
  /// and verify. `taps` may be null.
  Plan plan(const Taps* taps);

  const Weight& token_embd();  // [n_vocab, n_embd]
  const Weight& head();        // [n_vocab, n_embd]: output.weight, or the embedding when tied

  /// States by name, made on first use.
  const State& state(const std::string& name, decltype(State::kind) kind);
  Weights& mutable_weights() { return weights_; }

 private:
  GgufFile file_;
  ModelConfig config_;
  Weights weights_;
  std::deque<State> states_;
};

}  // namespace onebit
