// Tiny random models as real files: a qwen35 or qwen35moe target (two delta net blocks, two attention blocks), with a
// multi-token head if wanted, and DFlash drafters for it. A vocabulary of a few tokens makes random drafts be accepted
// often enough to be interesting.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "gguf/blocks.h"
#include "gguf/keys.h"
#include "gguf/writer.h"

namespace onebit::test {

struct TinyShape {
  int64_t n_embd = 64, n_vocab = 12, n_ff = 96, n_head = 2, n_head_kv = 1, d_head = 32;
  int64_t n_layer = 4, interval = 2;  // blocks 1 and 3 attend
  int64_t n_k_head = 2, n_v_head = 4, d_state = 16, n_tap = 4;
  int64_t n_expert = 0, n_expert_used = 2, n_ff_expert = 32, n_ff_shared = 64;  // no experts: qwen35
  bool mtp = false;                                                             // a multi-token head behind the trunk
  int64_t n_draft_layer = 2, block = 6, window = 0, rank = 32, top_k = 4, group = 16;
  BlockType type = BlockType::f32;  // of the matrices
  uint64_t seed = 1;
};

class TinyWriter {
 public:
  TinyWriter(const std::string& path, const TinyShape& shape) : shape_(shape), rng_(shape.seed), out_(path) {}

  GgufWriter& out() { return out_; }
  /// Declares a matrix with entries of standard deviation `gain` / sqrt(columns).
  void matrix(const std::string& name, std::vector<int64_t> shape, double gain = 1, bool f32 = false) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    const double scale = gain * std::sqrt(12.0 / static_cast<double>(shape.back()));
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = static_cast<float>(scale * (rng_.uniform() - 0.5));
    add(name, f32 ? BlockType::f32 : shape_.type, shape, values);
  }
  /// Declares a vector around `centre`.
  void vector(const std::string& name, std::vector<int64_t> shape, double centre, double spread) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = static_cast<float>(centre + spread * (2 * rng_.uniform() - 1));
    add(name, BlockType::f32, shape, values);
  }
  void finish() {
    for (const Tensor& t : tensors_) out_.declare(t.name, t.type, t.shape);
    for (const Tensor& t : tensors_) out_.write(t.name, t.bytes);
    out_.finish();
  }

 private:
  struct Tensor {
    std::string name;
    BlockType type;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
  };
  void add(const std::string& name, BlockType type, const std::vector<int64_t>& shape,
           const std::vector<float>& values) {
    const int64_t k = shape.back(), rows = static_cast<int64_t>(values.size()) / k;
    Tensor t{name, type, shape, std::vector<uint8_t>(static_cast<size_t>(rows * row_bytes(type, k)))};
    for (int64_t r = 0; r < rows; ++r)
      encode_row(type, values.data() + r * k, t.bytes.data() + r * row_bytes(type, k), k);
    tensors_.push_back(std::move(t));
  }

  TinyShape shape_;
  Rng rng_;
  GgufWriter out_;
  std::vector<Tensor> tensors_;
};

inline void write_common(TinyWriter& w, const TinyShape& s, const std::string& arch, int64_t n_layer) {
  w.out().add(keys::kArchitecture, arch);
  w.out().add(keys::block_count(arch), static_cast<uint32_t>(n_layer));
  w.out().add(keys::context_length(arch), 4096u);
  w.out().add(keys::embedding_length(arch), static_cast<uint32_t>(s.n_embd));
  w.out().add(keys::feed_forward_length(arch), static_cast<uint32_t>(s.n_ff));
  w.out().add(keys::head_count(arch), static_cast<uint32_t>(s.n_head));
  w.out().add(keys::head_count_kv(arch), static_cast<uint32_t>(s.n_head_kv));
  w.out().add(keys::key_length(arch), static_cast<uint32_t>(s.d_head));
  w.out().add(keys::value_length(arch), static_cast<uint32_t>(s.d_head));
  w.out().add(keys::rms_epsilon(arch), 1e-6f);
  w.out().add(keys::rope_freq_base(arch), 10000.0f);
}

inline void write_ffn(TinyWriter& w, const TinyShape& s, int64_t i) {
  w.matrix(keys::block(i, keys::kFfnGate), {s.n_ff, s.n_embd});
  w.matrix(keys::block(i, keys::kFfnUp), {s.n_ff, s.n_embd});
  w.matrix(keys::block(i, keys::kFfnDown), {s.n_embd, s.n_ff});
}

inline void write_experts(TinyWriter& w, const TinyShape& s, int64_t i) {
  w.matrix(keys::block(i, keys::kFfnGateInp), {s.n_expert, s.n_embd}, 2, true);
  w.matrix(keys::block(i, keys::kFfnGateExps), {s.n_expert, s.n_ff_expert, s.n_embd});
  w.matrix(keys::block(i, keys::kFfnUpExps), {s.n_expert, s.n_ff_expert, s.n_embd});
  w.matrix(keys::block(i, keys::kFfnDownExps), {s.n_expert, s.n_embd, s.n_ff_expert});
  w.vector(keys::block(i, keys::kFfnGateInpShexp), {s.n_embd}, 0, 0.5);
  w.matrix(keys::block(i, keys::kFfnGateShexp), {s.n_ff_shared, s.n_embd});
  w.matrix(keys::block(i, keys::kFfnUpShexp), {s.n_ff_shared, s.n_embd});
  w.matrix(keys::block(i, keys::kFfnDownShexp), {s.n_embd, s.n_ff_shared});
}

inline void write_attention(TinyWriter& w, const TinyShape& s, int64_t i, int64_t q_rows) {
  w.matrix(keys::block(i, keys::kAttnQ), {q_rows, s.n_embd});
  w.matrix(keys::block(i, keys::kAttnK), {s.n_head_kv * s.d_head, s.n_embd});
  w.matrix(keys::block(i, keys::kAttnV), {s.n_head_kv * s.d_head, s.n_embd});
  w.vector(keys::block(i, keys::kAttnQNorm), {s.d_head}, 1, 0.2);
  w.vector(keys::block(i, keys::kAttnKNorm), {s.d_head}, 1, 0.2);
  w.matrix(keys::block(i, keys::kAttnOutput), {s.n_embd, s.n_head * s.d_head});
}

inline void write_delta_net(TinyWriter& w, const TinyShape& s, int64_t i) {
  const int64_t inner = s.n_v_head * s.d_state, n_channel = 2 * s.n_k_head * s.d_state + inner;
  w.matrix(keys::block(i, keys::kAttnQkv), {n_channel, s.n_embd});
  w.matrix(keys::block(i, keys::kAttnGate), {inner, s.n_embd});
  w.matrix(keys::block(i, keys::kSsmAlpha), {s.n_v_head, s.n_embd}, 1, true);
  w.matrix(keys::block(i, keys::kSsmBeta), {s.n_v_head, s.n_embd}, 1, true);
  w.vector(keys::block(i, keys::kSsmConv1d), {n_channel, s.n_tap}, 0.3, 0.5);
  w.vector(keys::block(i, keys::kSsmA), {s.n_v_head}, -0.5, 0.4);
  w.vector(keys::block(i, keys::kSsmDtBias), {s.n_v_head}, 0, 0.5);
  w.vector(keys::block(i, keys::kSsmNorm), {s.d_state}, 1, 0.2);
  w.matrix(keys::block(i, keys::kSsmOut), {s.n_embd, inner});
}

/// The block of a multi-token head.
inline void write_mtp(TinyWriter& w, const TinyShape& s, int64_t i) {
  for (const char* norm :
       {keys::kAttnNorm, keys::kPostAttentionNorm, keys::kNextnEnorm, keys::kNextnHnorm, keys::kNextnSharedHeadNorm}) {
    w.vector(keys::block(i, norm), {s.n_embd}, 1, 0.2);
  }
  w.matrix(keys::block(i, keys::kNextnEhProj), {s.n_embd, 2 * s.n_embd});
  write_attention(w, s, i, s.n_head * 2 * s.d_head);
  s.n_expert > 0 ? write_experts(w, s, i) : write_ffn(w, s, i);
}

/// Writes the target.
inline void write_tiny_target(const std::string& path, const TinyShape& s) {
  TinyWriter w(path, s);
  const std::string arch = s.n_expert > 0 ? "qwen35moe" : "qwen35";
  write_common(w, s, arch, s.n_layer + (s.mtp ? 1 : 0));
  if (s.mtp) w.out().add(keys::nextn_predict_layers(arch), 1u);
  if (s.n_expert > 0) {
    w.out().add(keys::expert_count(arch), static_cast<uint32_t>(s.n_expert));
    w.out().add(keys::expert_used_count(arch), static_cast<uint32_t>(s.n_expert_used));
    w.out().add(keys::expert_feed_forward_length(arch), static_cast<uint32_t>(s.n_ff_expert));
    w.out().add(keys::expert_shared_feed_forward_length(arch), static_cast<uint32_t>(s.n_ff_shared));
  }
  w.out().add(keys::full_attention_interval(arch), static_cast<uint32_t>(s.interval));
  w.out().add(keys::rope_dimension_count(arch), static_cast<uint32_t>(s.d_head / 2));
  w.out().add(keys::ssm_conv_kernel(arch), static_cast<uint32_t>(s.n_tap));
  w.out().add(keys::ssm_state_size(arch), static_cast<uint32_t>(s.d_state));
  w.out().add(keys::ssm_group_count(arch), static_cast<uint32_t>(s.n_k_head));
  w.out().add(keys::ssm_time_step_rank(arch), static_cast<uint32_t>(s.n_v_head));
  w.out().add(keys::ssm_inner_size(arch), static_cast<uint32_t>(s.n_v_head * s.d_state));
  w.matrix(keys::kTokenEmbd, {s.n_vocab, s.n_embd}, 8);
  w.matrix(keys::kOutput, {s.n_vocab, s.n_embd}, 2);
  w.vector(keys::kOutputNorm, {s.n_embd}, 1, 0.2);
  for (int64_t i = 0; i < s.n_layer; ++i) {
    w.vector(keys::block(i, keys::kAttnNorm), {s.n_embd}, 1, 0.2);
    w.vector(keys::block(i, keys::kPostAttentionNorm), {s.n_embd}, 1, 0.2);
    if ((i + 1) % s.interval == 0) {
      write_attention(w, s, i, s.n_head * 2 * s.d_head);
    } else {
      write_delta_net(w, s, i);
    }
    s.n_expert > 0 ? write_experts(w, s, i) : write_ffn(w, s, i);
  }
  if (s.mtp) write_mtp(w, s, s.n_layer);
  w.finish();
}

/// Writes a drafter of version 1 or 2 that taps blocks 1 and n_layer - 1.
inline void write_tiny_drafter(const std::string& path, const TinyShape& s, int version) {
  TinyWriter w(path, s);
  const std::string arch = "dflash";
  write_common(w, s, arch, s.n_draft_layer);
  w.out().add(keys::kDflashTargetLayers, std::vector<int32_t>{1, static_cast<int32_t>(s.n_layer - 1)});
  w.out().add(keys::kDflashBlockSize, static_cast<uint32_t>(s.block));
  w.out().add(keys::kTokenizerMask, static_cast<uint32_t>(s.n_vocab - 1));
  if (s.window > 0) w.out().add(keys::sliding_window(arch), static_cast<uint32_t>(s.window));
  w.matrix(keys::kFc, {s.n_embd, 2 * s.n_embd});
  w.vector(keys::kEncOutputNorm, {s.n_embd}, 1, 0.2);
  w.vector(keys::kOutputNorm, {s.n_embd}, 1, 0.2);
  for (int64_t i = 0; i < s.n_draft_layer; ++i) {
    w.vector(keys::block(i, keys::kAttnNorm), {s.n_embd}, 1, 0.2);
    w.vector(keys::block(i, keys::kFfnNorm), {s.n_embd}, 1, 0.2);
    write_attention(w, s, i, s.n_head * s.d_head);
    write_ffn(w, s, i);
    if (version == 1) continue;
    w.vector(keys::block(i, keys::kAttnConvBase), {2, 2, s.n_embd}, 0.5, 0.5);
    w.vector(keys::block(i, keys::kFfnConvBase), {2, 2, s.n_embd}, 0.5, 0.5);
    w.matrix(keys::block(i, keys::kAttnConvProj), {4 * s.n_embd / s.group, s.n_embd}, 0.2);
    w.matrix(keys::block(i, keys::kFfnConvProj), {4 * s.n_embd / s.group, s.n_embd}, 0.2);
  }
  if (version == 2) {
    w.out().add(keys::kDflashConvKernelSize, 2u);
    w.out().add(keys::kDflashConvGroupSize, static_cast<uint32_t>(s.group));
    w.out().add(keys::kDflashSelectorRank, static_cast<uint32_t>(s.rank));
    w.out().add(keys::kDflashSelectorTopK, static_cast<uint32_t>(s.top_k));
    w.matrix(keys::kSelectorHidden, {s.rank, s.n_embd});
    w.matrix(keys::kSelectorPredecessor, {s.n_vocab, s.rank});
    w.matrix(keys::kSelectorSuccessor, {s.n_vocab, s.rank});
  }
  w.finish();
}

}  // namespace onebit::test
