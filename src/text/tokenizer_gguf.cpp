// Reads TokenizerData from the metadata of a GGUF file.
#include <limits>

#include "base/error.h"
#include "gguf/file.h"
#include "gguf/keys.h"
#include "text/tokenizer.h"

namespace onebit {

namespace {

using namespace keys;

/// 0xFFFFFFFF stands for "none" in files whose writer had no such id.
std::optional<int32_t> read_id(const GgufFile& file, const char* key, size_t n_vocab) {
  const auto id = file.get<uint32_t>(key);
  if (!id || *id == std::numeric_limits<uint32_t>::max()) return std::nullopt;
  if (*id >= n_vocab) refuse("{}: {} is {}, the vocabulary has {} tokens", file.path(), key, *id, n_vocab);
  return static_cast<int32_t>(*id);
}

std::vector<TokenType> read_types(const GgufFile& file, size_t n_vocab) {
  std::vector<TokenType> types(n_vocab, TokenType::normal);
  const auto values = file.get<std::vector<int32_t>>(kTokenizerTokenType);
  if (!values) return types;
  if (values->size() != n_vocab) {
    refuse("{}: {} has {} entries, {} has {}", file.path(), kTokenizerTokenType, values->size(), kTokenizerTokens,
           n_vocab);
  }
  for (size_t i = 0; i < n_vocab; ++i) {
    const int32_t value = (*values)[i];
    if (value < 1 || value > 6) {
      refuse("{}: {}[{}] is {}, wanted 1 to 6", file.path(), kTokenizerTokenType, i, value);
    }
    types[i] = static_cast<TokenType>(value);
  }
  return types;
}

SpecialIds read_special_ids(const GgufFile& file, size_t n_vocab) {
  const auto id = [&](const char* key) { return read_id(file, key, n_vocab); };
  SpecialIds ids;
  ids.bos = id(kTokenizerBos);
  ids.eos = id(kTokenizerEos);
  ids.eot = id(kTokenizerEot);
  ids.eom = id(kTokenizerEom);
  ids.unk = id(kTokenizerUnknown);
  ids.sep = id(kTokenizerSeparator);
  ids.pad = id(kTokenizerPadding);
  ids.mask = id(kTokenizerMask);
  ids.fim_pre = id(kTokenizerFimPre);
  ids.fim_suf = id(kTokenizerFimSuf);
  ids.fim_mid = id(kTokenizerFimMid);
  ids.fim_pad = id(kTokenizerFimPad);
  ids.fim_rep = id(kTokenizerFimRep);
  ids.fim_sep = id(kTokenizerFimSep);
  return ids;
}

}  // namespace

TokenizerData tokenizer_data_from_gguf(const GgufFile& file) {
  const std::string model = file.require<std::string>(kTokenizerModel);
  if (model != "gpt2") {
    refuse("{}: {} is \"{}\"; this engine has byte-level BPE, which files call \"gpt2\"", file.path(), kTokenizerModel,
           printable(model));
  }
  TokenizerData data;
  data.pre = file.require<std::string>(kTokenizerPre);
  const Pretokenizer& pre = find_pretokenizer(data.pre);
  data.tokens = file.require<std::vector<std::string>>(kTokenizerTokens);
  data.types = read_types(file, data.tokens.size());
  data.merges = file.require<std::vector<std::string>>(kTokenizerMerges);
  data.special = read_special_ids(file, data.tokens.size());
  data.nfc = pre.nfc;
  data.ignore_merges = pre.ignore_merges;
  data.add_bos =
      file.get_or<bool>(kTokenizerAddBos, pre.ignore_merges);  // Llama 3 puts bos in front unless told not to
  data.add_eos = file.get_or<bool>(kTokenizerAddEos, false);
  return data;
}

}  // namespace onebit
