// The verdict on a verified draft. For every row the answer's own sampler draws a token; a draft is kept while that
// token equals it, and the first token that differs goes into the text instead. So each token has the target's
// distribution, whatever was proposed (docs/drafting.md). Knows rows of logits, no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/generation.h"

namespace onebit {

/// What the target found for the rows of a batch.
class TargetRows {
 public:
  virtual ~TargetRows() = default;
  /// The most likely token of a row.
  virtual int32_t next(int64_t row) = 0;
  /// The logits of a row to `to` [n_vocab].
  virtual void logits(int64_t row, std::span<float> to) = 0;
};

/// Draws the answer's next token from `row`. `scratch` [n_vocab] is overwritten.
TokenEvent draw_token(Generation& generation, TargetRows& rows, int64_t row, std::span<float> scratch);

/// The target ran on [anchor, drafting().tokens...] of an answer, whose rows begin at `row` (just one when nothing was
/// drafted): draws, reports and learns. `kept` becomes the tokens whose rows stay: the anchor and the accepted drafts.
void verify_draft(Generation& generation, TargetRows& rows, int64_t row, std::span<float> scratch,
                  std::vector<int32_t>& kept);

}  // namespace onebit
