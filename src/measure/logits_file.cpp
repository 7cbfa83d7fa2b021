#include "measure/logits_file.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace onebit {
namespace {

constexpr const char* kType = "general.type";
constexpr const char* kTypeValue = "logits";
constexpr const char* kModel = "general.name";
constexpr const char* kTokens = "tokens";  // i32 [n_chunk, n_ctx]
constexpr const char* kLogits = "logits";  // i16 [n_row, n_vocab], to be read as unsigned
constexpr float kDepth = 32, kSteps = 65535;

template <class T>
std::span<const uint8_t> bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace

void encode_logits(std::span<const float> logits, std::span<uint16_t> codes) {
  const float peak = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    const float depth = std::clamp(peak - logits[i], 0.0f, kDepth);
    codes[i] = static_cast<uint16_t>(kSteps * std::sqrt(depth / kDepth) + 0.5f);
  }
}

CodeTable::CodeTable() : log(65536), probability(65536) {
  for (int q = 0; q < 65536; ++q) {
    const double share = q / static_cast<double>(kSteps), value = -kDepth * share * share;
    log[static_cast<size_t>(q)] = static_cast<float>(value);
    probability[static_cast<size_t>(q)] = static_cast<float>(std::exp(value));
  }
}

LogitsWriter::LogitsWriter(const std::string& path, const TextChunks& chunks, int64_t n_vocab, const std::string& model)
    : writer_(path), chunks_(chunks), n_vocab_(n_vocab), codes_(static_cast<size_t>(n_vocab)) {
  writer_.add(kType, kTypeValue);
  writer_.add(kModel, model);
  const int64_t tokens[] = {chunks.n_chunk(), chunks.n_ctx};
  const int64_t logits[] = {chunks.n_chunk() * scored_rows(chunks.n_ctx), n_vocab};
  writer_.declare(kTokens, BlockType::i32, tokens);
  writer_.declare(kLogits, BlockType::i16, logits);
  writer_.write(kTokens, bytes_of(std::span<const int32_t>(chunks_.tokens)));
}

void LogitsWriter::add(std::span<const float> logits) {
  for (size_t at = 0; at < logits.size(); at += codes_.size()) {
    encode_logits(logits.subspan(at, codes_.size()), codes_);
    writer_.write(kLogits, bytes_of(std::span<const uint16_t>(codes_)));
  }
}

void LogitsWriter::finish() { writer_.finish(); }

LogitsReader::LogitsReader(const std::string& path, const TextChunks& chunks, int64_t n_vocab)
    : file_(GgufFile::open(path)), n_vocab_(n_vocab) {
  const TensorInfo *tokens = file_.find(kTokens), *logits = file_.find(kLogits);
  if (file_.get_or<std::string>(kType, "") != kTypeValue || !tokens || !logits || tokens->type != BlockType::i32 ||
      logits->type != BlockType::i16) {
    refuse("{}: expected logits saved by `1bit eval --save-logits`, found another file", path);
  }
  const std::vector<int64_t> rows = {chunks.n_chunk() * scored_rows(chunks.n_ctx), n_vocab};
  const auto expected = bytes_of(std::span<const int32_t>(chunks.tokens));
  if (tokens->data.size() < expected.size() || !std::equal(expected.begin(), expected.end(), tokens->data.begin()) ||
      tokens->shape.back() != chunks.n_ctx || logits->shape.size() != 2 || logits->shape[0] < rows[0]) {
    refuse("{}: expected logits of the same text in {} chunks of {} tokens, found other tokens ({})", path,
           chunks.n_chunk(), chunks.n_ctx, shape_text(tokens->shape));
  }
  if (logits->shape[1] != n_vocab) {
    refuse("{}: expected logits of {} tokens each, found {}", path, n_vocab, logits->shape[1]);
  }
  codes_ = reinterpret_cast<const uint16_t*>(logits->data.data());
}

std::span<const uint16_t> LogitsReader::row(int64_t row) const {
  return {codes_ + row * n_vocab_, static_cast<size_t>(n_vocab_)};
}

}  // namespace onebit
