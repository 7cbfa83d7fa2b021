// The metadata that a converted file gets: sizes, positions, experts, drafter fields, and the tokenizer.
#pragma once

#include <string>

#include "convert/hf_model.h"
#include "gguf/writer.h"

namespace onebit {

/// Keys of the model itself. `n_mtp`: MTP blocks that follow the trunk; `name`: general.name.
void write_hf_keys(const HfModel& model, int64_t n_mtp, BlockType type, const std::string& name, GgufWriter& writer);

/// Keys of the tokenizer in `folder` and its chat templates, when tokenizer.json exists; `n_vocab` rows of the
/// embedding (0: unknown) get a token each. True when a tokenizer was written.
bool write_hf_tokenizer(const std::string& folder, int64_t n_vocab, GgufWriter& writer);

}  // namespace onebit
