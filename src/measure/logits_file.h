// Saved logits of a reference: a GGUF file with the evaluated tokens and, for every scored row, the log-probabilities
// of the whole vocabulary in 16 bits each.
//
// Code q of an entry means ln p = -32 (q / 65535)^2 - ln(sum over the row of exp of the same): steps are finest among
// the likely tokens, and the normalisation is exact. Entries below e^-32 of the largest are stored as that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/writer.h"
#include "measure/text_chunks.h"

namespace onebit {

/// Rows of a chunk that are scored: those at positions n_ctx/2 .. n_ctx-2, each against the token behind it.
inline int64_t first_scored(int64_t n_ctx) { return n_ctx / 2; }
inline int64_t scored_rows(int64_t n_ctx) { return n_ctx - 1 - first_scored(n_ctx); }

class LogitsWriter {
 public:
  /// Throws Error(runtime) when the file can't be made.
  LogitsWriter(const std::string& path, const TextChunks& chunks, int64_t n_vocab, const std::string& model);
  /// The next rows, in order [n, n_vocab].
  void add(std::span<const float> logits);
  /// Completes the file; without it nothing is left behind.
  void finish();

 private:
  GgufWriter writer_;
  TextChunks chunks_;
  int64_t n_vocab_;
  std::vector<uint16_t> codes_;
};

class LogitsReader {
 public:
  /// Throws Error(refused) when it is no such file, or of other tokens or another vocabulary.
  LogitsReader(const std::string& path, const TextChunks& chunks, int64_t n_vocab);
  /// Codes of scored row `row`, counted over all chunks [n_vocab].
  std::span<const uint16_t> row(int64_t row) const;

 private:
  GgufFile file_;
  int64_t n_vocab_;
  const uint16_t* codes_ = nullptr;
};

/// -32 (q / 65535)^2 and its exponential for all codes.
struct CodeTable {
  CodeTable();
  std::vector<float> log, probability;  // [65536]
};

/// Codes of a row of logits [n_vocab].
void encode_logits(std::span<const float> logits, std::span<uint16_t> codes);

}  // namespace onebit
