#include "measure/text_chunks.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer.h"

namespace onebit {

std::vector<int32_t> TextChunks::evaluated(int64_t i) const {
  std::vector<int32_t> chunk(tokens.begin() + i * n_ctx, tokens.begin() + (i + 1) * n_ctx);
  if (bos >= 0) chunk.front() = bos;
  return chunk;
}

TextChunks cut_text(const Model& model, std::string_view text, int64_t n_ctx, int64_t max_chunks,
                    const std::string& source) {
  CHECK(n_ctx > 1);
  const Tokenizer tokenizer(tokenizer_data_from_gguf(model.file()));
  if (text.ends_with('\n')) text.remove_suffix(1);
  TextChunks chunks{n_ctx, tokenizer.encode(text, ParseSpecial::no), -1};
  tokenizer.add_special_ids(chunks.tokens);
  if (tokenizer.add_bos() && tokenizer.bos()) chunks.bos = *tokenizer.bos();
  const auto n_tok = static_cast<int64_t>(chunks.tokens.size());
  if (n_tok < n_ctx) {
    refuse("{}: expected a text of at least {} tokens (one chunk), found {}: use a longer text or a smaller --ctx-size",
           source, n_ctx, n_tok);
  }
  const int64_t n_chunk = max_chunks > 0 ? std::min(max_chunks, n_tok / n_ctx) : n_tok / n_ctx;
  chunks.tokens.resize(static_cast<size_t>(n_chunk * n_ctx));
  const int32_t largest = std::max(*std::max_element(chunks.tokens.begin(), chunks.tokens.end()), chunks.bos);
  if (largest >= model.config().n_vocab) {
    refuse("{}: the tokenizer gives id {}, the model has {} tokens", model.file().path(), largest,
           model.config().n_vocab);
  }
  return chunks;
}

}  // namespace onebit
