// The multi-token head of qwen3.5-like models (nextn): one more block behind the trunk that predicts the token after
// the next from the next token and the target's last hidden state. In the target's file, or in a file of its own.
#pragma once

#include <optional>

#include "model/drafter.h"

namespace onebit {

/// True for files of models that hold such a block.
bool has_mtp_head(const GgufFile& file);

class MtpHead : public Drafter {
 public:
  /// The head in the target's own file. Refused when there is none.
  explicit MtpHead(Model& target);
  MtpHead(GgufFile file, Model& target);

  const char* kind() const override { return "mtp"; }
  const GgufFile& file() const override { return own_file_ ? *own_file_ : target_.file(); }
  bool owns(const Weight* weight) const override { return own_weights_ && own_weights_->owns(weight); }
  bool chained() const override { return true; }
  Plan encode_plan() override;
  Plan draft_plan() override;

 private:
  MtpHead(std::optional<GgufFile> file, Model& target);
  void check_fit() const;
  void split_projection();
  const Weight& get(const char* role, const std::vector<int64_t>& shape);
  const Weight& norm_of(const char* role);
  const Weight& embedding();
  const Weight& head();
  /// The block's input [tok, n_embd] from tokens and the hidden states before them.
  Value joined(Plan& plan);
  /// Stores this row's key and value.
  void store_keys_values(Plan& plan, Value a);
  Value attention(Plan& plan, Value a);
  Value ffn(Plan& plan, Value x);

  std::optional<GgufFile> own_file_;
  std::optional<Weights> own_weights_;
  Weights& weights_;
  int64_t index_ = 0;  // of the block in its file
  // eh_proj [n_embd, 2 n_embd] as two matrices, for the embedding and for the hidden state.
  std::vector<uint8_t> half_bytes_[2];
  Weight halves_[2];
};

}  // namespace onebit
