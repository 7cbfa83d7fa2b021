// The numbers of a model, read from a file's metadata and checked once. In: GgufFile. Out: ModelConfig, DrafterConfig.
#pragma once

#include <string>
#include <vector>

#include "gguf/file.h"
#include "plan/op.h"

namespace onebit {

/// A target model. Counts are at least 1 unless said otherwise.
struct ModelConfig {
  std::string architecture;
  int64_t n_layer = 0;  // trunk blocks; MTP blocks follow them in the file
  int64_t n_mtp = 0;    // MTP blocks, may be 0
  int64_t n_embd = 0, n_vocab = 0, n_ctx_train = 0;
  int64_t n_ff = 0;  // dense feed-forward width, 0 in mixture models
  int64_t n_head = 0, n_head_kv = 0, d_head = 0;
  float eps = 1e-6f;
  RopeParams rope;  // n_head is set per use

  int64_t n_expert = 0, n_expert_used = 0, n_ff_expert = 0, n_ff_shared = 0;  // all 0 in dense models
  float expert_scale = 1;

  std::vector<bool> recurrent;  // [n_layer]: gated delta net instead of attention
  DeltaNetParams delta_net;     // hybrids only

  bool moe() const { return n_expert > 0; }
  bool hybrid() const { return delta_net.n_v_head > 0; }
};

/// A DFlash drafter; version 2 when it has a selector.
struct DrafterConfig {
  int64_t n_layer = 0, n_embd = 0, n_ff = 0, n_head = 0, n_head_kv = 0, d_head = 0;
  float eps = 1e-6f;
  RopeParams rope;
  int64_t block_size = 16;  // rows of a block: the anchor and block_size - 1 drafted tokens
  int32_t mask_token = -1;
  std::vector<int64_t> tap_layers;  // blocks of the target whose output is tapped, counted from 1
  std::vector<int64_t> window;      // [n_layer]: sliding window, 0 = unlimited
  bool causal = false;              // among the rows of a block
  int32_t n_conv_tap = 0, conv_group = 0, selector_rank = 0, selector_top_k = 0;  // 0 in version 1
  float logit_scale = 1, logit_cap = 0, embedding_scale = 1;

  int version() const { return selector_top_k > 0 ? 2 : 1; }
  /// Positions before the block that any layer can see: the largest window less one, or 0 = all of them.
  int64_t context_rows() const;
};

/// Throws Error(refused) on an unknown architecture, a missing key or a number that makes no sense.
ModelConfig read_model_config(const GgufFile& file);
DrafterConfig read_drafter_config(const GgufFile& file);

/// True for the architecture string of drafters.
bool is_drafter(const GgufFile& file);

}  // namespace onebit
