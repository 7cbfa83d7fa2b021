// What a body of /v1/chat/completions, /v1/completions or /completion asks for: every field checked and turned into a
// Request for the engine and the options of its text.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/request.h"
#include "engine/text_model.h"
#include "engine/text_stream.h"
#include "server/json.h"

namespace onebit {

/// The shape of a reply: OpenAI's chat and text completions, or llama-server's own.
enum class Api { chat, completion, native };

/// What fields that a body doesn't have are taken from.
struct RequestDefaults {
  const TextModel* model = nullptr;
  SamplingOptions sampling;
  std::optional<uint64_t> seed;  // absent: a new one each time
  int64_t max_tokens = -1;
  int64_t n_ctx = 0;
  int64_t max_messages = 0;
  Json template_kwargs = Json::object();
  bool split_reasoning = true;
};

struct GenerationRequest {
  Api api = Api::chat;
  Request request;
  TextStreamOptions text;
  std::string prompt;  // as text; empty when it came as ids
  bool stream = false;
  bool include_usage = false;      // a last chunk with usage
  bool timings_per_token = false;  // timings in every chunk
  bool return_tokens = false;
  bool return_progress = false;  // chunks that tell how far the prompt is read
  bool echo = false;
};

/// Throws ApiError(400) naming the field that is wrong, and exceed_context_size_error.
GenerationRequest read_generation_request(Api api, const Json& body, const RequestDefaults& defaults);

/// The conversation of a chat body with its tools and template settings, checked and in plain text.
TemplateInput read_conversation(const Json& body, const RequestDefaults& defaults);

/// The sampling of a body (temperature ... logit_bias, seed); not the number of logprobs.
SamplingOptions read_sampling(const Json& body, const RequestDefaults& defaults);

/// A token id of an array `field`; throws ApiError(400) outside the vocabulary.
int32_t read_token_id(const char* field, const Json& value, const Tokenizer& tokenizer);

}  // namespace onebit
