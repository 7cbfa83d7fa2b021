// A DFlash drafter (version 1 or 2): a small network that proposes the next block of tokens in one pass, from hidden
// states tapped in the target. It borrows the target's embedding and head.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace onebit {

class Drafter {
 public:
  /// Opens a drafter and checks that it fits `target` (hidden size, vocabulary, tapped blocks); refused with both
  /// numbers.
  static std::unique_ptr<Drafter> open(const std::string& path, Model& target);
  Drafter(GgufFile file, Model& target);
  Drafter(const Drafter&) = delete;

  const GgufFile& file() const { return file_; }
  const DrafterConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  /// The caches of its layers.
  std::vector<const State*> states() const;
  /// What the target's plan must store; taps().rows is a state of its own (RowsState).
  const Taps& taps() const { return taps_; }

  /// Hidden states of accepted tokens -> keys and values in the caches. Rows are load_rows' source rows; no outputs.
  Plan encode_plan();
  /// One block: rows [anchor, MASK, MASK ...] of each sequence; results for every row but the anchors.
  /// "candidates" [out, k], descending by logit, and their "scores" [out, k]; version 2 also "ids" [out, 1], the
  /// selector's walk, and "confidence" [out, 1], its softmax over the scores. A version 1 draft is candidate 0 of each
  /// row.
  Plan draft_plan();

 private:
  void check_fit() const;
  const Weight& block_weight(int64_t index, const char* role, const std::vector<int64_t>& shape);
  const State& cache(int64_t index);
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
  Model& target_;
  DrafterConfig config_;
  Weights weights_;
  std::deque<State> states_;
  State tap_rows_;
  Taps taps_;
};

}  // namespace onebit
