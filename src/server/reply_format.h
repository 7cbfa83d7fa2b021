// Answers as JSON, in the shapes of OpenAI's chat and text completions and of llama-server's own completion: the
// chunks of a stream and the whole replies. Pure functions of what they are given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/request.h"
#include "server/answer_channel.h"
#include "server/generation_request.h"
#include "server/json.h"
#include "text/tokenizer.h"

namespace onebit {

/// "timings" with llama-server's names, and "speculation": how the drafter did. `drafter`: none, dflash, dflash2.
Json timings_of(const Statistics& statistics);
Json speculation_of(const Statistics& statistics, const std::string& drafter);

/// Sampling settings under llama-server's names.
Json sampling_json(const SamplingOptions& sampling);

/// What all chunks of one answer share.
class ReplyFormat {
 public:
  /// `request` and `tokenizer` must outlive the object.
  ReplyFormat(const GenerationRequest& request, const Tokenizer& tokenizer, std::string model, std::string drafter);

  const std::string& id() const { return id_; }

  /// One "data:" event.
  static std::string event(const Json& json);
  /// The marker that ends a stream; nothing for Api::native.
  std::string done() const;

  /// The first chunk: the role in a chat, the prompt when it is echoed; null: there is none.
  Json first_chunk() const;
  /// Text and tokens of a part; null when there is nothing to send.
  Json text_chunk(const AnswerPart& part);
  /// How far the prompt is read.
  Json progress_chunk(const AnswerPart& part, int64_t n_cached) const;
  /// The chunk with the reason of the end, and the one with usage behind it when that was asked for (else null).
  Json last_chunk(const AnswerPart& end, std::optional<size_t> matched_stop) const;
  Json usage_chunk(const AnswerPart& end) const;
  /// The whole answer at once; `all` is every part merged.
  Json whole(const AnswerPart& all, std::optional<size_t> matched_stop);

 private:
  Json envelope(const char* object) const;
  Json choice(Json fields, const Json& finish_reason) const;
  Json chunk(Json choice) const;
  Json finish_reason(const AnswerPart& end) const;
  Json usage(const Statistics& statistics) const;
  void add_measures(const Statistics& statistics, Json& to) const;
  Json chat_logprobs(const std::vector<TokenEvent>& tokens) const;
  Json completion_logprobs(const std::vector<TokenEvent>& tokens);
  Json token_logprob(int32_t id, float logprob) const;
  Json native_chunk(const AnswerPart& part) const;
  Json native_end(const AnswerPart& end, std::optional<size_t> matched_stop) const;
  Json settings() const;
  bool wants_logprobs() const { return request_.request.sampling.n_logprobs >= 0; }

  const GenerationRequest& request_;
  const Tokenizer& tokenizer_;
  std::string id_, model_, drafter_;
  int64_t created_;
  int64_t text_offset_;  // of the next token in a text completion
};

}  // namespace onebit
