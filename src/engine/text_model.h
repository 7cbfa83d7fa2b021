// The text side of a model file: tokenizer, chat template and recommended sampling, read once, and the ways from a
// conversation or a text to prompt ids. Immutable: any number of threads may share it.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "gguf/file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace onebit {

struct TextModel {
  Tokenizer tokenizer;
  ChatTemplate chat_template;
  SamplingOptions sampling;  // general.sampling.* of the file over default_sampling()
};

/// What an answer is sampled with when neither the file nor the request says otherwise.
SamplingOptions default_sampling();

/// Throws Error(refused). `chat_template` replaces the file's when not empty; a file without one gets ChatML.
TextModel read_text_model(const GgufFile& file, const std::string& chat_template = "");

/// Reads a model's text side on a thread of its own, so that it takes no time beside the loading of the weights.
class TextReading {
 public:
  /// Starts; the arguments are those of read_text_model(), but for the file, which is opened once more.
  explicit TextReading(std::string path, std::string chat_template = "");
  /// Throws what the reading has thrown by now, so that nobody waits for weights in vain.
  void check();
  /// Waits for the end and gives the model away. Throws what the reading threw.
  TextModel take() { return std::move(*result_.get()); }

 private:
  std::shared_future<std::shared_ptr<TextModel>> result_;  // waits when it is destroyed
};

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;
  bool thinking = false;  // the prompt ends inside a <think> block
};

/// Renders and encodes a conversation; bos_token and eos_token of `input` are filled in. Special tokens are recognised
/// in the template's own text only. Throws Error(usage) when the template refuses the conversation.
Prompt chat_prompt(const TextModel& model, TemplateInput input);

/// Encodes a text with the special tokens in it, behind bos where the file asks for one.
std::vector<int32_t> text_prompt(const TextModel& model, std::string_view text);

/// The ids that end an answer, as Request::stop_ids and turn_ids; with `ignore` they are never drawn instead.
void set_end_tokens(const Tokenizer& tokenizer, bool ignore, Request& request);

}  // namespace onebit
