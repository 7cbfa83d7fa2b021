// The fields that the three kinds of generation share, and their prompts.
#include "server/generation_request.h"

#include <limits>

#include "server/api_error.h"

namespace onebit {

namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int64_t kMaxDraft = 1024;
constexpr int64_t kMaxTop = 20;     // of OpenAI's fields
constexpr int64_t kMaxProbs = 100;  // of llama-server's
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

std::vector<std::string> read_stops(const Fields& fields) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (!list.is_array()) fields.refuse("stop", "a string or an array of strings", *value);
  if (list.size() > kMaxStops)
    throw invalid_request(fmt::format("stop: expected at most {} strings, found {}", kMaxStops, list.size()));
  std::vector<std::string> stops;
  for (const Json& stop : list) {
    if (!stop.is_string()) fields.refuse("stop", "a string or an array of strings", stop);
    stops.push_back(stop.get<std::string>());
    if (stops.back().size() > kMaxStopBytes)
      throw invalid_request(fmt::format("stop: a string is longer than {} bytes", kMaxStopBytes));
  }
  return stops;
}

/// The first of three names that is there; -1: without a limit.
int64_t read_max_tokens(const Fields& fields, const RequestDefaults& defaults) {
  std::optional<int64_t> max_tokens;
  for (const char* name : {"max_completion_tokens", "max_tokens", "n_predict"}) {
    const auto n = fields.integer(name, -1, kMaxTokens);
    if (n && *n == 0) {
      throw invalid_request(fmt::format("{}: expected at least 1, or -1 for no limit, found 0", name));
    }
    if (!max_tokens) max_tokens = n;
  }
  return max_tokens.value_or(defaults.max_tokens);
}

/// Flat keys ("speculative.n_max") or an object.
void read_speculation(const Json& body, Request& request) {
  const Fields flat(body);
  const Json* nested = flat.object("speculative");
  const Json none = Json::object();
  const Fields inside(nested ? *nested : none, "speculative.");
  auto n_max = flat.integer("speculative.n_max", 0, kMaxDraft);
  if (!n_max) n_max = inside.integer("n_max", 0, kMaxDraft);
  if (n_max) request.draft_max = static_cast<int32_t>(*n_max);
  auto p_min = flat.number("speculative.p_min", 0, 1);
  if (!p_min) p_min = inside.number("p_min", 0, 1);
  if (p_min) request.draft_p_min = static_cast<float>(*p_min);
  request.draft_adaptive = flat.boolean("speculative.adaptive");
  if (!request.draft_adaptive) request.draft_adaptive = inside.boolean("adaptive");
}

/// How many alternatives to report, -1: no logprobs at all.
int32_t read_n_logprobs(const Fields& fields, Api api) {
  if (const auto n = fields.integer("n_probs", 0, kMaxProbs); n && *n > 0) return static_cast<int32_t>(*n);
  if (api == Api::completion) {
    const auto n = fields.integer("logprobs", 0, kMaxTop);
    return n ? static_cast<int32_t>(*n) : -1;
  }
  if (api == Api::native) return -1;
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto n = fields.integer("top_logprobs", 0, kMaxTop);
  if (n && !wanted) throw invalid_request("top_logprobs: needs logprobs to be true");
  return wanted ? static_cast<int32_t>(n.value_or(0)) : -1;
}

/// What would change the answer and isn't there must not be ignored.
void refuse_unsupported(const Fields& fields) {
  for (const char* name : {"n", "best_of", "n_cmpl"}) fields.integer(name, 1, 1);
  for (const char* name : {"grammar", "json_schema", "suffix"}) {
    const Json* value = fields.find(name);
    const bool nothing = value == nullptr || (value->is_string() && value->empty()) ||
                         (value->is_string() && value->get_ref<const std::string&>().empty());
    if (!nothing) throw invalid_request(fmt::format("{}: not supported by this server", name));
  }
  if (const Json* format = fields.object("response_format")) {
    const auto type = Fields(*format, "response_format.").string("type").value_or("text");
    if (type != "text") throw invalid_request("response_format: only type 'text' is supported by this server");
  }
}

bool read_split_reasoning(const Fields& fields, const RequestDefaults& defaults) {
  const auto format = fields.string("reasoning_format");
  if (!format) return defaults.split_reasoning;
  if (*format == "none") return false;
  if (*format != "auto" && *format != "deepseek") {
    throw invalid_request("reasoning_format: expected 'auto', 'deepseek' or 'none'");
  }
  return true;
}

/// A text, or an array of ids and texts. An array of several texts alone would be several prompts.
void read_prompt(const Fields& fields, const TextModel& model, GenerationRequest& to) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw invalid_request("prompt: expected a string or an array of token ids, found nothing");
  const Json* one = prompt->is_array() && prompt->size() == 1 ? &prompt->front() : prompt;
  if (one->is_array() && prompt != one) return read_prompt(Fields(Json{{"prompt", *one}}), model, to);
  if (one->is_string()) {
    to.prompt = one->get<std::string>();
    to.request.prompt = text_prompt(model, to.prompt);
    return;
  }
  if (!prompt->is_array()) fields.refuse("prompt", "a string or an array of token ids", *prompt);
  size_t n_texts = 0;
  for (const Json& part : *prompt) {
    if (part.is_string()) {
      ++n_texts;
      const auto ids = model.tokenizer.encode(part.get_ref<const std::string&>(), ParseSpecial::yes);
      to.request.prompt.insert(to.request.prompt.end(), ids.begin(), ids.end());
    } else {
      to.request.prompt.push_back(read_token_id("prompt", part, model.tokenizer));
    }
  }
  if (n_texts > 0 && n_texts == prompt->size())
    throw invalid_request("prompt: one prompt a request is supported, found several");
}

void read_flags(const Fields& fields, GenerationRequest& to) {
  to.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    to.include_usage = Fields(*options, "stream_options.").boolean("include_usage").value_or(false);
  }
  to.timings_per_token = fields.boolean("timings_per_token").value_or(false);
  to.return_tokens = fields.boolean("return_tokens").value_or(false);
  to.return_progress = fields.boolean("return_progress").value_or(false);
  to.echo = to.api == Api::completion && fields.boolean("echo").value_or(false);
}

}  // namespace

int32_t read_token_id(const char* field, const Json& value, const Tokenizer& tokenizer) {
  const bool small = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX);
  const int64_t id = small ? value.get<int64_t>() : -1;
  if (id < 0 || id >= tokenizer.n_vocab()) {
    throw invalid_request(fmt::format("{}: expected token ids from 0 to {}, found {}", field, tokenizer.n_vocab() - 1,
                                      value.is_number() ? to_text(value) : kind_of(value)));
  }
  return static_cast<int32_t>(id);
}

GenerationRequest read_generation_request(Api api, const Json& body, const RequestDefaults& defaults) {
  const Fields fields(body);
  const TextModel& model = *defaults.model;
  GenerationRequest to;
  to.api = api;
  fields.string("model");
  refuse_unsupported(fields);
  read_flags(fields, to);
  to.request.sampling = read_sampling(body, defaults);
  to.request.sampling.n_logprobs = read_n_logprobs(fields, api);
  to.request.max_tokens = read_max_tokens(fields, defaults);
  to.request.reuse_prefix = fields.boolean("cache_prompt").value_or(true);
  read_speculation(body, to.request);
  set_end_tokens(model.tokenizer, fields.boolean("ignore_eos").value_or(false), to.request);
  to.text.stop = read_stops(fields);
  if (api == Api::chat) {
    to.text.split_reasoning = read_split_reasoning(fields, defaults);
    Prompt prompt = chat_prompt(model, read_conversation(body, defaults));
    to.text.thinking = prompt.thinking;
    to.request.prompt = std::move(prompt.ids);
    to.prompt = std::move(prompt.text);
  } else {
    read_prompt(fields, model, to);
    if (to.echo && to.prompt.empty()) to.prompt = model.tokenizer.decode(to.request.prompt);
  }
  const auto n_prompt = static_cast<int64_t>(to.request.prompt.size());
  if (n_prompt >= defaults.n_ctx) throw too_long(n_prompt, defaults.n_ctx);
  if (n_prompt == 0) throw invalid_request("prompt: expected at least one token, found none");
  return to;
}

}  // namespace onebit
