// What a caller asks of the engine and what it gets back, in token ids. Text stays above (text_stream.h), devices
// below.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace onebit {

/// How the next token is drawn from the logits. The order is: bias, penalties, top-k, typical-p, top-p, min-p,
/// temperature.
struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: all
  float top_p = 1, min_p = 0, typical_p = 1;
  float repeat_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int32_t repeat_last_n = 64;                         // tokens the penalties look back on; -1: the whole context
  std::vector<std::pair<int32_t, float>> logit_bias;  // -inf bans a token
  std::vector<int32_t> suppressed;                    // never drawn (vocabulary padding, end tokens when ignored)
  uint64_t seed = 0;
  int32_t n_logprobs = -1;  // -1: none; n: logprobs of the token and of the n most likely ones
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  SamplingOptions sampling;
  int64_t max_tokens = -1;             // -1: until the context is full
  std::vector<int32_t> stop_ids;       // drawing one of these ends the answer; it is not reported
  std::vector<int32_t> turn_ids;       // these end turns in the prompt: places to keep its state at
  std::optional<int32_t> draft_max;    // most tokens drafted a step, 0 = no drafting; the engine's setting when absent
  std::optional<bool> draft_adaptive;  // lengths chosen for each step; the engine's setting when absent
  std::optional<float> draft_p_min;    // smallest confidence of a drafted token
  bool reuse_prefix = true;            // start from what a slot has already evaluated
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

struct TokenEvent {
  int32_t id = 0;
  float logprob = 0;              // when asked for, from the target's own distribution before truncation
  std::vector<TokenLogprob> top;  // descending
};

enum class FinishReason : uint8_t { stop, length, cancelled, error };
/// "stop", "length", "cancelled", "error".
const char* finish_name(FinishReason reason);

struct Statistics {
  int32_t slot = -1;     // where it ran; -1: it never left the queue
  int64_t prompt_n = 0;  // prompt tokens evaluated (cache_n excluded)
  int64_t cache_n = 0;   // prompt tokens reused
  double prompt_ms = 0;
  int64_t predicted_n = 0;
  double predicted_ms = 0;
  int64_t draft_n = 0, draft_n_accepted = 0;    // drafted tokens that were verified; those kept
  int64_t lookup_n = 0, lookup_n_accepted = 0;  // of these, the ones found in the text so far
  int64_t draft_passes = 0;                     // passes of the drafter
  int64_t draft_fed = 0;                        // positions of prompt and answer that were fed to it
  std::vector<int64_t> steps_by_length;         // [draft length, 0 = plain]: steps after the first token
  double plain_steps_worth = 0;  // plain steps that all steps cost by the known times; one each if unknown
  int64_t rounds = 0;            // verify steps with at least one drafted token
  std::vector<int64_t> accepted_per_position;  // [draft length]: rounds in which this position was accepted
  std::vector<int32_t> accepted_per_round;     // drafted tokens kept, one entry a round

  double prompt_per_second() const { return prompt_ms > 0 ? 1e3 * static_cast<double>(prompt_n) / prompt_ms : 0; }
  double predicted_per_second() const {
    return predicted_ms > 0 ? 1e3 * static_cast<double>(predicted_n) / predicted_ms : 0;
  }
  /// Tokens gained per verify step, the target's own token included; 0 without rounds.
  double tokens_per_step() const {
    return rounds > 0 ? 1 + static_cast<double>(draft_n_accepted) / static_cast<double>(rounds) : 0;
  }
};

/// Receives the events of one request, on the thread that runs the scheduler. Must not block and must not throw.
class Listener {
 public:
  virtual ~Listener() = default;
  /// Prompt tokens evaluated so far, of `total`; 0 when the request leaves the queue.
  virtual void on_prompt(int64_t done, int64_t total) { (void)done, (void)total; }
  /// One generated token. Returning false ends the answer with FinishReason::stop.
  virtual bool on_token(const TokenEvent& event) = 0;
  /// The last call. `message` explains FinishReason::error.
  virtual void on_finish(FinishReason reason, const Statistics& statistics, const std::string& message) = 0;
};

}  // namespace onebit
