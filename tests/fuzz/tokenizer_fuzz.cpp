// Texts of any bytes through every pre-tokenizer: encoding terminates, streaming equals decoding, and where nothing is
// normalised decoding gives the text back.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace onebit;

/// All bytes, some merges, two added tokens.
TokenizerData make_data(const Pretokenizer& pre) {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) data.tokens.push_back(to_alphabet(std::string(1, static_cast<char>(byte))));
  for (const char* merge : {"a a", "aa aa", "\u0120 \u0120", "e r", "\u00C3 \u00A9", "\u0120 a", "aaaa aa", "1 1"}) {
    data.merges.emplace_back(merge);
    std::string token = merge;
    token.erase(token.find(' ', 1), 1);
    data.tokens.push_back(token);
  }
  data.types.assign(data.tokens.size(), TokenType::normal);
  data.tokens.insert(data.tokens.end(), {"<|e|>", "<t>"});
  data.types.insert(data.types.end(), {TokenType::control, TokenType::user_defined});
  data.pre = pre.name;
  data.nfc = pre.nfc;
  data.ignore_merges = pre.ignore_merges;
  return data;
}

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer, ShowControl::yes);
  std::string text;
  for (const int32_t id : ids) decoder.push(id, text);
  decoder.finish(text);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const char* const names[] = {"qwen2", "qwen35", "llama-bpe", "gpt-2", "smollm", "glm4"};
  static const auto* const tokenizers = [] {
    auto* list = new std::vector<Tokenizer>;
    for (const char* name : names) list->emplace_back(make_data(find_pretokenizer(name)));
    return list;
  }();
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const Tokenizer& tokenizer = (*tokenizers)[bytes[0] % 6];
  const bool nfc = find_pretokenizer(names[bytes[0] % 6]).nfc;

  std::string repaired;
  append_valid_utf8(repaired, text);
  for (const ParseSpecial parse : {ParseSpecial::no, ParseSpecial::yes}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, parse);
    const std::string decoded = tokenizer.decode(ids);
    CHECK(nfc || decoded == repaired);
    CHECK(stream(tokenizer, ids) == decoded);
  }
  const size_t half = text.size() / 2;
  const TextSegment segments[] = {{text.substr(0, half), ParseSpecial::yes}, {text.substr(half), ParseSpecial::no}};
  tokenizer.encode(segments);
  return 0;
}
