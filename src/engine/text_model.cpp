// Keys of the file to text objects; segments of a rendered prompt to ids.
#include "engine/text_model.h"

#include <chrono>
#include <utility>

#include "base/error.h"
#include "gguf/keys.h"
#include "model/shapes.h"

namespace onebit {

namespace {

void put_bos(const Tokenizer& tokenizer, std::vector<int32_t>& ids) {
  const auto bos = tokenizer.bos();
  if (!tokenizer.add_bos() || !bos || (!ids.empty() && ids.front() == *bos)) return;
  ids.insert(ids.begin(), *bos);
}

std::string piece_of(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? std::string(tokenizer.piece(*id)) : std::string();
}

/// A number of the file within [low, high]; refused outside, since every request would inherit it.
template <class T>
T sampling_value(const GgufFile& file, const char* key, T fallback, T low, T high) {
  const T value = file.get_or<T>(key, fallback);
  if (!(value >= low && value <= high)) {
    refuse("{}: {} must be between {} and {}, the file has {}", file.path(), key, low, high, value);
  }
  return value;
}

SamplingOptions read_sampling(const GgufFile& file) {
  SamplingOptions s = default_sampling();
  s.temperature = sampling_value<float>(file, keys::kSamplingTemperature, s.temperature, 0, 100);
  s.top_k = sampling_value<int32_t>(file, keys::kSamplingTopK, s.top_k, 0, 1 << 30);
  s.top_p = sampling_value<float>(file, keys::kSamplingTopP, s.top_p, 0, 1);
  s.min_p = sampling_value<float>(file, keys::kSamplingMinP, s.min_p, 0, 1);
  s.repeat_penalty = sampling_value<float>(file, keys::kSamplingRepeatPenalty, s.repeat_penalty, 0.01f, 100);
  s.repeat_last_n = sampling_value<int32_t>(file, keys::kSamplingRepeatLastN, s.repeat_last_n, -1, 1 << 30);
  return s;
}

}  // namespace

SamplingOptions default_sampling() {
  SamplingOptions s;
  s.temperature = 0.8f;
  s.top_k = 40;
  s.top_p = 0.95f;
  s.min_p = 0.05f;
  return s;
}

TextModel read_text_model(const GgufFile& file, const std::string& chat_template) {
  std::string source = chat_template;
  if (source.empty()) source = file.get_or<std::string>(keys::kChatTemplate, kChatMlTemplate);
  return {Tokenizer(tokenizer_data_from_gguf(file)), ChatTemplate(std::move(source)), read_sampling(file)};
}

TextReading::TextReading(std::string path, std::string chat_template)
    : result_(std::async(std::launch::async, [path = std::move(path), source = std::move(chat_template)] {
        return std::make_shared<TextModel>(read_text_model(open_model_file(path, Filling::none), source));
      })) {}

void TextReading::check() {
  if (result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) result_.get();
}

Prompt chat_prompt(const TextModel& model, TemplateInput input) {
  input.bos_token = piece_of(model.tokenizer, model.tokenizer.bos());
  input.eos_token = piece_of(model.tokenizer, model.tokenizer.eos());
  const std::vector<Segment> rendered = model.chat_template.render(input);
  std::vector<TextSegment> segments;
  segments.reserve(rendered.size());
  for (const Segment& s : rendered) {
    segments.push_back({s.text, s.from_input ? ParseSpecial::no : ParseSpecial::yes});
  }
  Prompt prompt{model.tokenizer.encode(segments), prompt_text(rendered), template_opens_think(rendered)};
  put_bos(model.tokenizer, prompt.ids);
  return prompt;
}

std::vector<int32_t> text_prompt(const TextModel& model, std::string_view text) {
  std::vector<int32_t> ids = model.tokenizer.encode(text, ParseSpecial::yes);
  put_bos(model.tokenizer, ids);
  return ids;
}

void set_end_tokens(const Tokenizer& tokenizer, bool ignore, Request& request) {
  const auto& eog = tokenizer.eog_ids();
  auto& ids = ignore ? request.sampling.suppressed : request.stop_ids;
  ids.insert(ids.end(), eog.begin(), eog.end());
  request.turn_ids.assign(eog.begin(), eog.end());
}

}  // namespace onebit
