// A text model whose tokens are the 256 bytes and the four tags of a chat: small enough to write ids by hand.
#pragma once

#include <string>
#include <vector>

#include "engine/text_model.h"
#include "text/byte_alphabet.h"

namespace onebit::test {

inline constexpr int32_t kImStart = 256, kImEnd = 257, kThink = 258, kEndThink = 259;

inline TokenizerData byte_tokenizer_data() {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(to_alphabet(std::string(1, static_cast<char>(byte))));
    data.types.push_back(TokenType::normal);
  }
  for (const char* control : {"<|im_start|>", "<|im_end|>"}) {
    data.tokens.emplace_back(control);
    data.types.push_back(TokenType::control);
  }
  for (const char* tag : {"<think>", "</think>"}) {
    data.tokens.emplace_back(tag);
    data.types.push_back(TokenType::user_defined);
  }
  data.pre = "qwen2";
  data.special.eos = kImEnd;
  return data;
}

inline TextModel byte_model(const std::string& chat_template = kChatMlTemplate) {
  return {Tokenizer(byte_tokenizer_data()), ChatTemplate(chat_template), default_sampling()};
}

/// The ids of plain text.
inline std::vector<int32_t> byte_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

}  // namespace onebit::test
