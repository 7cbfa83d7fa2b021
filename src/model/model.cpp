#include "model/model.h"

#include "base/error.h"
#include "gguf/keys.h"
#include "model/registry.h"
#include "model/shapes.h"

namespace onebit {

std::unique_ptr<Model> Model::open(const std::string& path, const W4a4Choice& choice) {
  return std::make_unique<Model>(open_model_file(path), choice);
}

Model::Model(GgufFile file, const W4a4Choice& choice)
    : file_(std::move(file)), config_(read_model_config(file_)), weights_(file_, choice) {
  plan(nullptr);  // names and checks every tensor of the trunk
}

std::vector<const State*> Model::states() const {
  std::vector<const State*> all;
  for (const State& state : states_) all.push_back(&state);
  return all;
}

const State& Model::state(const std::string& name, decltype(State::kind) kind) {
  for (const State& state : states_) {
    if (state.name == name) return state;
  }
  return states_.emplace_back(State{name, std::move(kind)});
}

const Weight& Model::token_embd() { return weights_.get(keys::kTokenEmbd, {config_.n_vocab, config_.n_embd}); }

const Weight& Model::head() {
  const Weight* output = weights_.find(keys::kOutput, {config_.n_vocab, config_.n_embd});
  return output ? *output : token_embd();
}

Plan Model::plan(const Taps* taps) {
  Plan plan(config_.architecture);
  const Value hidden = find_architecture(file_).trunk(plan, *this, taps);  // [tok, n_embd]
  const Weight& norm = weights_.get(keys::kOutputNorm, {config_.n_embd});
  Value last;  // [out, n_embd]
  if (taps && taps->normed) {
    const Value normed = plan.rms_norm(hidden, norm, config_.eps);
    plan.store_rows(normed, *taps->rows, 0);
    last = plan.gather_rows(normed);
  } else {
    last = plan.rms_norm(plan.gather_rows(hidden), norm, config_.eps);
  }
  const Value logits = linear(plan, last, head());  // [out, n_vocab]
  plan.output("logits", logits);
  plan.output("next", plan.argmax(logits));
  return plan;
}

}  // namespace onebit
