// A tiny random model with the byte tokenizer, as a file that a server can load.
#pragma once

#include <string>

#include "gguf/file.h"
#include "support/byte_model.h"
#include "support/tiny_model.h"

namespace onebit::test {

inline void write_tiny_text_model(const std::string& path, TinyShape shape = {}) {
  const TokenizerData data = byte_tokenizer_data();
  shape.n_vocab = static_cast<int64_t>(data.tokens.size());
  const std::string bare = path + ".bare";
  write_tiny_target(bare, shape);
  const GgufFile file = GgufFile::open(bare);
  GgufWriter writer(path);
  for (const MetaEntry& entry : file.metadata()) writer.add(entry.key, entry.value);
  writer.add(keys::kTokenizerModel, "gpt2");
  writer.add(keys::kTokenizerPre, data.pre);
  writer.add(keys::kTokenizerTokens, data.tokens);
  writer.add(keys::kTokenizerMerges, data.merges);
  std::vector<int32_t> types;
  for (const TokenType type : data.types) types.push_back(static_cast<int32_t>(type));
  writer.add(keys::kTokenizerTokenType, types);
  writer.add(keys::kTokenizerEos, static_cast<uint32_t>(kImEnd));
  for (const TensorInfo& tensor : file.tensors()) writer.declare(tensor.name, tensor.type, tensor.shape);
  for (const TensorInfo& tensor : file.tensors()) writer.write(tensor.name, tensor.data);
  writer.finish();
}

}  // namespace onebit::test
