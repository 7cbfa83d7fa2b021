// A text as pieces of equal length, the way perplexities are compared between programs: the text is tokenised as a
// whole, cut into chunks of n_ctx tokens, and what is left over is dropped. Where the model wants a start token, each
// chunk's first token is replaced by it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace onebit {

struct TextChunks {
  int64_t n_ctx = 0;            ///< tokens of a chunk
  std::vector<int32_t> tokens;  ///< [n_chunk, n_ctx], before start tokens are put in
  int32_t bos = -1;             ///< replaces the first token of each chunk when it is evaluated; -1: none

  int64_t n_chunk() const { return static_cast<int64_t>(tokens.size()) / n_ctx; }
  /// The tokens of chunk `i` as they are evaluated [n_ctx].
  std::vector<int32_t> evaluated(int64_t i) const;
};

/// At most `max_chunks` chunks (0: all). Throws Error(refused) when the text has no whole chunk or the tokenizer's ids
/// exceed the model's vocabulary; `source` names the text in messages.
TextChunks cut_text(const Model& model, std::string_view text, int64_t n_ctx, int64_t max_chunks,
                    const std::string& source);

}  // namespace onebit
