// Reads the tokenizer of a Hugging Face checkpoint (tokenizer.json, tokenizer_config.json, config.json) into
// TokenizerData: ids, added tokens and their types, merges, and the pre-tokenizer recognised by its regular expression.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace onebit {

/// The texts of the files; empty: there is no such file.
struct HfTokenizerFiles {
  std::string tokenizer;         ///< tokenizer.json, required
  std::string tokenizer_config;  ///< tokenizer_config.json: names of bos, eos, ...; add_bos_token
  std::string config;            ///< config.json: bos_token_id, eos_token_id, ... where the other doesn't name them
};

/// `n_vocab`: rows of the model's embedding; ids that no token has are filled with unused ones. 0: as many as there
/// are. Throws Error(refused) for files that aren't what they should be and for tokenizers that this engine doesn't
/// have.
TokenizerData tokenizer_data_from_hf(const HfTokenizerFiles& files, int32_t n_vocab = 0);

/// Reads the files in a checkpoint's folder. Throws Error(refused) when tokenizer.json is missing.
TokenizerData read_hf_tokenizer(const std::string& folder, int32_t n_vocab = 0);

}  // namespace onebit
