// Field by field; the order of fields is that of the two originals.
#include "server/reply_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

namespace onebit {

namespace {

constexpr const char* kFingerprint = "1bit";
constexpr float kLeastLogprob = -9999;  // JSON has no infinity

double per_token(double ms, int64_t n) { return n > 0 ? ms / static_cast<double>(n) : 0; }

std::string new_id(Api api) {
  std::random_device random;
  const char* prefix = api == Api::chat ? "chatcmpl" : "cmpl";
  return fmt::format("{}-{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

/// The number that was written, not the nearest double of the nearest float.
double shown(float value) { return std::stod(fmt::format("{}", value)); }

Json ids_of(const std::vector<TokenEvent>& tokens) {
  Json ids = Json::array();
  for (const TokenEvent& token : tokens) ids.push_back(token.id);
  return ids;
}

}  // namespace

Json timings_of(const Statistics& s) {
  return {{"cache_n", s.cache_n},
          {"prompt_n", s.prompt_n},
          {"prompt_ms", s.prompt_ms},
          {"prompt_per_token_ms", per_token(s.prompt_ms, s.prompt_n)},
          {"prompt_per_second", s.prompt_per_second()},
          {"predicted_n", s.predicted_n},
          {"predicted_ms", s.predicted_ms},
          {"predicted_per_token_ms", per_token(s.predicted_ms, s.predicted_n)},
          {"predicted_per_second", s.predicted_per_second()},
          {"draft_n", s.draft_n},
          {"draft_n_accepted", s.draft_n_accepted}};
}

Json speculation_of(const Statistics& s, const std::string& drafter) {
  return {{"kind", drafter},
          {"rounds", s.rounds},
          {"drafted", s.draft_n},
          {"accepted", s.draft_n_accepted},
          {"tokens_per_step", s.tokens_per_step()},
          {"accepted_per_position", s.accepted_per_position},
          {"steps_by_length", s.steps_by_length},
          {"draft_passes", s.draft_passes},
          {"fed", s.draft_fed},
          {"looked_up", s.lookup_n},
          {"looked_up_accepted", s.lookup_n_accepted}};
}

ReplyFormat::ReplyFormat(const GenerationRequest& request, const Tokenizer& tokenizer, std::string model,
                         std::string drafter)
    : request_(request),
      tokenizer_(tokenizer),
      id_(new_id(request.api)),
      model_(std::move(model)),
      drafter_(std::move(drafter)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      text_offset_(request.echo ? static_cast<int64_t>(request.prompt.size()) : 0) {}

std::string ReplyFormat::event(const Json& json) { return "data: " + to_text(json) + "\n\n"; }

std::string ReplyFormat::done() const { return request_.api == Api::native ? "" : "data: [DONE]\n\n"; }

Json ReplyFormat::envelope(const char* object) const {
  return {
      {"id", id_}, {"object", object}, {"created", created_}, {"model", model_}, {"system_fingerprint", kFingerprint}};
}

Json ReplyFormat::choice(Json fields, const Json& finish_reason) const {
  Json choice = {{"index", 0}};
  choice.update(fields);
  choice["finish_reason"] = finish_reason;
  return choice;
}

Json ReplyFormat::chunk(Json choice) const {
  Json json = envelope(request_.api == Api::chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array({std::move(choice)});
  return json;
}

Json ReplyFormat::finish_reason(const AnswerPart& end) const {
  return end.reason == FinishReason::length ? "length" : "stop";
}

Json ReplyFormat::usage(const Statistics& s) const {
  const auto n_prompt = static_cast<int64_t>(request_.request.prompt.size());
  return {{"prompt_tokens", n_prompt},
          {"completion_tokens", s.predicted_n},
          {"total_tokens", n_prompt + s.predicted_n},
          {"prompt_tokens_details", {{"cached_tokens", s.cache_n}}}};
}

void ReplyFormat::add_measures(const Statistics& s, Json& to) const {
  to["timings"] = timings_of(s);
  to["speculation"] = speculation_of(s, drafter_);
}

Json ReplyFormat::first_chunk() const {
  if (request_.api == Api::chat) return chunk(choice({{"delta", {{"role", "assistant"}, {"content", ""}}}}, nullptr));
  if (request_.echo) return chunk(choice({{"text", request_.prompt}}, nullptr));
  return nullptr;
}

Json ReplyFormat::text_chunk(const AnswerPart& part) {
  const bool has_tokens = !part.tokens.empty() && (request_.return_tokens || wants_logprobs());
  if (!part.has_text() && !has_tokens) return nullptr;
  Json json;
  if (request_.api == Api::native) {
    json = native_chunk(part);
  } else if (request_.api == Api::chat) {
    Json delta = Json::object();
    if (!part.text.reasoning.empty()) delta["reasoning_content"] = part.text.reasoning;
    if (!part.text.content.empty()) delta["content"] = part.text.content;
    Json fields = {{"delta", std::move(delta)}};
    if (wants_logprobs()) fields["logprobs"] = {{"content", chat_logprobs(part.tokens)}};
    json = chunk(choice(std::move(fields), nullptr));
  } else {
    Json fields = {{"text", part.text.content}};
    if (wants_logprobs()) fields["logprobs"] = completion_logprobs(part.tokens);
    json = chunk(choice(std::move(fields), nullptr));
  }
  if (request_.return_tokens && request_.api != Api::native) json["tokens"] = ids_of(part.tokens);
  if (request_.timings_per_token) {
    Statistics so_far;
    so_far.prompt_n = static_cast<int64_t>(request_.request.prompt.size());
    so_far.prompt_ms = part.prompt_ms;
    so_far.predicted_n = part.n_generated;
    so_far.predicted_ms = part.predicted_ms;
    json["timings"] = timings_of(so_far);
  }
  return json;
}

Json ReplyFormat::progress_chunk(const AnswerPart& part, int64_t n_cached) const {
  Json json;
  if (request_.api == Api::native) {
    json = {{"index", 0}, {"content", ""}, {"stop", false}};
  } else {
    const Json nothing = request_.api == Api::chat ? Json{{"delta", Json::object()}} : Json{{"text", ""}};
    json = chunk(choice(nothing, nullptr));
  }
  json["prompt_progress"] = {
      {"total", part.n_prompt}, {"cache", n_cached}, {"processed", part.n_prompt_done}, {"time_ms", part.prompt_ms}};
  return json;
}

Json ReplyFormat::last_chunk(const AnswerPart& end, std::optional<size_t> matched_stop) const {
  if (request_.api == Api::native) return native_end(end, matched_stop);
  const Json nothing = request_.api == Api::chat ? Json{{"delta", Json::object()}} : Json{{"text", ""}};
  Json json = chunk(choice(nothing, finish_reason(end)));
  add_measures(end.statistics, json);
  return json;
}

Json ReplyFormat::usage_chunk(const AnswerPart& end) const {
  if (request_.api == Api::native || !request_.include_usage) return nullptr;
  Json json = envelope(request_.api == Api::chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array();
  json["usage"] = usage(end.statistics);
  json["timings"] = timings_of(end.statistics);
  return json;
}

Json ReplyFormat::whole(const AnswerPart& all, std::optional<size_t> matched_stop) {
  if (request_.api == Api::native) {
    Json json = native_end(all, matched_stop);
    json["content"] = all.text.content;
    json["tokens"] = request_.return_tokens ? ids_of(all.tokens) : Json::array();
    if (wants_logprobs()) json["completion_probabilities"] = chat_logprobs(all.tokens);
    return json;
  }
  Json fields;
  Json json = envelope(request_.api == Api::chat ? "chat.completion" : "text_completion");
  if (request_.api == Api::chat) {
    Json message = {{"role", "assistant"}, {"content", all.text.content}};
    if (!all.text.reasoning.empty()) message["reasoning_content"] = all.text.reasoning;
    fields["message"] = std::move(message);
    fields["logprobs"] = wants_logprobs() ? Json{{"content", chat_logprobs(all.tokens)}} : Json();
  } else {
    fields["text"] = request_.echo ? request_.prompt + all.text.content : all.text.content;
    fields["logprobs"] = wants_logprobs() ? completion_logprobs(all.tokens) : Json();
  }
  json["choices"] = Json::array({choice(std::move(fields), finish_reason(all))});
  json["usage"] = usage(all.statistics);
  if (request_.return_tokens) json["tokens"] = ids_of(all.tokens);
  add_measures(all.statistics, json);
  return json;
}

Json ReplyFormat::token_logprob(int32_t id, float logprob) const {
  const std::string_view piece = tokenizer_.piece(id);
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<uint8_t>(c));
  return {{"id", id},
          {"token", std::string(piece)},
          {"bytes", std::move(bytes)},
          {"logprob", shown(std::max(logprob, kLeastLogprob))}};
}

Json ReplyFormat::chat_logprobs(const std::vector<TokenEvent>& tokens) const {
  Json list = Json::array();
  for (const TokenEvent& token : tokens) {
    Json entry = token_logprob(token.id, token.logprob);
    Json top = Json::array();
    for (const TokenLogprob& t : token.top) top.push_back(token_logprob(t.id, t.logprob));
    entry["top_logprobs"] = std::move(top);
    list.push_back(std::move(entry));
  }
  return list;
}

Json ReplyFormat::completion_logprobs(const std::vector<TokenEvent>& tokens) {
  Json texts = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenEvent& token : tokens) {
    const std::string_view piece = tokenizer_.piece(token.id);
    texts.push_back(std::string(piece));
    logprobs.push_back(shown(std::max(token.logprob, kLeastLogprob)));
    offsets.push_back(text_offset_);
    text_offset_ += static_cast<int64_t>(piece.size());
    Json top = Json::object();
    for (const TokenLogprob& t : token.top)
      top[std::string(tokenizer_.piece(t.id))] = shown(std::max(t.logprob, kLeastLogprob));
    tops.push_back(std::move(top));
  }
  return {{"tokens", texts}, {"token_logprobs", logprobs}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

Json ReplyFormat::native_chunk(const AnswerPart& part) const {
  Json json = {{"index", 0},
               {"content", part.text.content},
               {"tokens", request_.return_tokens ? ids_of(part.tokens) : Json::array()},
               {"stop", false},
               {"tokens_predicted", part.n_generated},
               {"tokens_evaluated", request_.request.prompt.size()}};
  if (wants_logprobs()) json["completion_probabilities"] = chat_logprobs(part.tokens);
  return json;
}

Json ReplyFormat::native_end(const AnswerPart& end, std::optional<size_t> matched_stop) const {
  const auto n_prompt = static_cast<int64_t>(request_.request.prompt.size());
  const bool limit = end.reason == FinishReason::length;
  Json json = {{"index", 0},
               {"content", ""},
               {"tokens", Json::array()},
               {"id_slot", end.statistics.slot},
               {"stop", true},
               {"model", model_},
               {"tokens_predicted", end.statistics.predicted_n},
               {"tokens_evaluated", n_prompt},
               {"generation_settings", settings()},
               {"prompt", request_.prompt},
               {"has_new_line", false},
               {"truncated", false},
               {"stop_type", matched_stop ? "word"
                             : limit      ? "limit"
                                          : "eos"},
               {"stopping_word", matched_stop ? request_.text.stop[*matched_stop] : ""},
               {"tokens_cached", n_prompt + end.statistics.predicted_n}};
  add_measures(end.statistics, json);
  return json;
}

Json ReplyFormat::settings() const {
  Json json = sampling_json(request_.request.sampling);
  json["max_tokens"] = request_.request.max_tokens;
  json["n_predict"] = request_.request.max_tokens;
  json["stop"] = request_.text.stop;
  json["stream"] = request_.stream;
  return json;
}

Json sampling_json(const SamplingOptions& s) {
  return {{"seed", s.seed},
          {"temperature", shown(s.temperature)},
          {"top_k", s.top_k},
          {"top_p", shown(s.top_p)},
          {"min_p", shown(s.min_p)},
          {"typical_p", shown(s.typical_p)},
          {"repeat_last_n", s.repeat_last_n},
          {"repeat_penalty", shown(s.repeat_penalty)},
          {"presence_penalty", shown(s.presence_penalty)},
          {"frequency_penalty", shown(s.frequency_penalty)},
          {"n_probs", std::max(s.n_logprobs, 0)}};
}

}  // namespace onebit
