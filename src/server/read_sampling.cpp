// The sampling fields of a request, under OpenAI's and llama-server's names.
#include <charconv>
#include <limits>
#include <map>
#include <random>

#include "server/api_error.h"
#include "server/generation_request.h"

namespace onebit {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr double kMaxBias = 1e6;

void set(float& to, std::optional<double> value) {
  if (value) to = static_cast<float>(*value);
}

/// A token of logit_bias: an id, or a text that stands for all of its tokens.
std::vector<int32_t> biased_tokens(const Json& token, const Tokenizer& tokenizer) {
  if (token.is_string()) {
    const std::string& text = token.get_ref<const std::string&>();
    int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size()) return tokenizer.encode(text, ParseSpecial::yes);
    return biased_tokens(id, tokenizer);
  }
  return {read_token_id("logit_bias", token, tokenizer)};
}

/// A number, or false for never.
float bias_value(const Json& value) {
  if (value.is_boolean() && !value.get<bool>()) return -std::numeric_limits<float>::infinity();
  const double bias = value.is_number() ? value.get<double>() : kMaxBias * 2;
  if (!(bias >= -kMaxBias && bias <= kMaxBias)) {
    throw invalid_request(fmt::format("logit_bias: expected a number from {} to {} or false, found {}", -kMaxBias,
                                      kMaxBias, to_text(value)));
  }
  return static_cast<float>(bias);
}

/// {"id": bias, ...} or [[id or text, bias], ...]
std::vector<std::pair<int32_t, float>> read_logit_bias(const Fields& fields, const Tokenizer& tokenizer) {
  const Json* value = fields.find("logit_bias");
  if (value == nullptr) return {};
  std::map<int32_t, float> biases;
  const auto add = [&](const Json& token, const Json& bias) {
    for (const int32_t id : biased_tokens(token, tokenizer)) biases[id] = bias_value(bias);
  };
  if (value->is_object()) {
    for (const auto& [token, bias] : value->items()) add(token, bias);
  } else if (value->is_array()) {
    for (const Json& pair : *value) {
      if (!pair.is_array() || pair.size() != 2)
        throw invalid_request("logit_bias: expected pairs of a token and a bias");
      add(pair[0], pair[1]);
    }
  } else {
    fields.refuse("logit_bias", "an object or an array of pairs", *value);
  }
  return {biases.begin(), biases.end()};
}

uint64_t new_seed() {
  std::random_device random;
  return random();
}

}  // namespace

SamplingOptions read_sampling(const Json& body, const RequestDefaults& defaults) {
  const Fields fields(body);
  SamplingOptions s = defaults.sampling;
  set(s.temperature, fields.number("temperature", 0, 100));
  // -1 is a common way to say "all" as well.
  if (const auto k = fields.integer("top_k", -1, kMaxInt)) s.top_k = static_cast<int32_t>(std::max<int64_t>(*k, 0));
  set(s.top_p, fields.number("top_p", 0, 1));
  set(s.min_p, fields.number("min_p", 0, 1));
  set(s.typical_p, fields.number("typical_p", 0, 1));
  set(s.repeat_penalty, fields.number("repeat_penalty", 1e-3, 1e3));
  set(s.presence_penalty, fields.number("presence_penalty", -100, 100));
  set(s.frequency_penalty, fields.number("frequency_penalty", -100, 100));
  if (const auto n = fields.integer("repeat_last_n", -1, kMaxInt)) s.repeat_last_n = static_cast<int32_t>(*n);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (seed && *seed != -1) {
    s.seed = static_cast<uint64_t>(*seed);
  } else {
    s.seed = defaults.seed ? *defaults.seed : new_seed();
  }
  s.logit_bias = read_logit_bias(fields, defaults.model->tokenizer);
  return s;
}

}  // namespace onebit
