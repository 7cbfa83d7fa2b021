// Parts that several architectures share, each a few plan steps. A block reads its weights by name from the model.
#pragma once

#include <string>

#include "model/model.h"

namespace onebit {

/// The weights and states of block `index`, by role.
class Block {
 public:
  Block(Model& model, int64_t index) : Block(model, model.mutable_weights(), index) {}
  /// A block of the model's shape in another file.
  Block(Model& model, Weights& weights, int64_t index) : model_(model), weights_(weights), index_(index) {}
  const Weight& get(const char* role, const std::vector<int64_t>& shape) const;
  const Weight* find(const char* role, const std::vector<int64_t>& shape) const;
  const State& state(decltype(State::kind) kind) const;
  const ModelConfig& config() const { return model_.config(); }
  Model& model() const { return model_; }

 private:
  Model& model_;
  Weights& weights_;
  int64_t index_;
};

/// Rotary parameters for `n_head` heads of this model.
RopeParams rope_for(const ModelConfig& config, int64_t n_head);

/// q, k [tok, heads * d_head] already normed, v: rotate, store, attend, project back to [tok, n_embd] without the
/// residual. `gate` [tok, n_head * d_head] multiplies the attention's output by its sigmoid when given.
Value attend(Plan& plan, const Block& block, Value q, Value k, Value v, const Value* gate, const Weight* rope_factors);

/// down(silu(gate(x)) * up(x)) [tok, n_embd].
Value swiglu_ffn(Plan& plan, const Block& block, Value x);

/// Mixture of experts, with a shared expert where the file has one [tok, n_embd].
Value moe_ffn(Plan& plan, const Block& block, Value x);

/// Writes x [tok, n_embd] to the taps' rows if block `layer` (counted from 1) is tapped.
void tap(Plan& plan, const Taps* taps, int64_t layer, Value x);

}  // namespace onebit
