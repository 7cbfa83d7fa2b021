// The tokenizers of tests/golden/tokenizers, for tests that need a real vocabulary.
#pragma once

#include <string>

#include "support/golden_text.h"
#include "text/hf_tokenizer.h"
#include "text/tokenizer.h"

namespace onebit::test {

inline std::string golden_folder() { return std::string(ONEBIT_SOURCE_DIR) + "/tests/golden/"; }

/// The published tokenizer.json of `name`: demo, qwen3, llama3_1, smollm2.
inline std::string golden_tokenizer_json(const std::string& name) {
  return read_xz(golden_folder() + "tokenizers/" + name + ".tokenizer.json.xz");
}

inline TokenizerData golden_tokenizer_data(const std::string& name) {
  HfTokenizerFiles files;
  files.tokenizer = golden_tokenizer_json(name);
  return tokenizer_data_from_hf(files);
}

}  // namespace onebit::test
