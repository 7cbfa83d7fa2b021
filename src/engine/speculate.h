// Draft, verify, accept, roll back: the only place that knows how. One round serves several answers at once; each is
// exact on its own, whatever the others do.
//
// A draft is kept while the token that the target's sampler draws at that row equals it, so the text has the target's
// distribution, whatever the drafter proposes; greedy text is the text without a drafter.
#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/generation.h"

namespace onebit {

class Speculator {
 public:
  explicit Speculator(Engine& engine);

  /// Most tokens to draft for this answer now; 0: none.
  int64_t draft_limit(const Generation& generation) const;
  /// Fills drafted() of every given answer, all in one pass of the drafter.
  void draft(std::span<Generation* const> generations);
  /// After the target ran on [anchor, drafted...] of an answer, whose logits begin at `out_row`: draws, reports, keeps
  /// the accepted rows in the session. Works for single decode rows too. Returns how many rows are kept.
  int64_t accept(Generation& generation, int64_t out_row);
  /// Draws one token from output row `out_row` (the end of a prompt, or a row of a verify batch).
  TokenEvent sample(Generation& generation, int64_t out_row);

  /// Queues rows of the target's last batch (rows row..row+n_tok-1, positions from pos) for the drafter's caches.
  void tap(Session& session, int64_t row, int64_t n_tok, int64_t pos);
  /// Encodes all queued rows.
  void encode();

 private:
  Engine& engine_;
  std::vector<float> logits_;
  std::vector<int32_t> tokens_, outputs_, source_rows_, ids_, kept_;
  std::vector<float> confidence_;
  std::vector<Sequence> sequences_, encode_sequences_;
};

}  // namespace onebit
