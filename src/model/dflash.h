// A DFlash drafter (version 1 or 2): a small network that proposes the next block of tokens in one pass, from hidden
// states tapped in the target.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/drafter.h"

namespace onebit {

class DFlash : public Drafter {
 public:
  DFlash(GgufFile file, Model& target);

  const char* kind() const override { return config_.version() == 2 ? "dflash2" : "dflash"; }
  const GgufFile& file() const override { return file_; }
  bool owns(const Weight* weight) const override { return weights_.owns(weight); }
  Plan encode_plan() override;
  Plan draft_plan() override;
  std::vector<std::string> unread() const override;

 private:
  void check_fit() const;
  /// The file's tensor of this name, or the target's.
  const Weight& own_or(const char* name, const Weight& targets);
  const Weight& block_weight(int64_t index, const char* role, const std::vector<int64_t>& shape);
  /// k, v of layer `index` from x [tok, n_embd]: projected, k normed and rotated.
  std::pair<Value, Value> keys_values(Plan& plan, int64_t index, Value x);
  Value draft_layer(Plan& plan, int64_t index, Value x);
  Value attention(Plan& plan, int64_t index, Value x);
  Value ffn(Plan& plan, int64_t index, Value x);
  /// A sublayer between its two convolutions (version 2), or alone (version 1).
  template <typename Sublayer>
  Value convolved(Plan& plan, int64_t index, const char* base, const char* proj, Value x, Sublayer sublayer);
  void select(Plan& plan, Value hidden, Value logits);

  GgufFile file_;
  Weights weights_;
};

}  // namespace onebit
