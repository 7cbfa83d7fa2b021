#include "model/drafter.h"

#include "gguf/keys.h"
#include "model/dflash.h"
#include "model/mtp.h"
#include "model/shapes.h"

namespace onebit {

std::unique_ptr<Drafter> Drafter::open(const std::string& path, Model& target) {
  if (path == target.file().path()) return std::make_unique<MtpHead>(target);
  GgufFile file = open_model_file(path);
  if (has_mtp_head(file)) return std::make_unique<MtpHead>(std::move(file), target);
  return std::make_unique<DFlash>(std::move(file), target);
}

std::vector<const State*> Drafter::states() const {
  std::vector<const State*> all;
  for (const State& state : states_) all.push_back(&state);
  return all;
}

const State& Drafter::cache(int64_t index) {
  const std::string name = keys::block(index, "draft_state");
  for (const State& state : states_) {
    if (state.name == name) return state;
  }
  return states_.emplace_back(State{name, KvState{config_.n_head_kv, config_.d_head}});
}

}  // namespace onebit
