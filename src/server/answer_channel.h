// One answer on its way from the engine's thread to a connection's: the engine pushes tokens, which become text here;
// the connection takes what has gathered. Parts that aren't taken in time are merged, so a slow client costs no more
// than the answer's own size and never holds up the engine.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/text_stream.h"
#include "server/socket.h"

namespace onebit {

/// What happened since the last take().
struct AnswerPart {
  ThinkDelta text;
  std::vector<TokenEvent> tokens;  // those whose text is complete in this part or before it
  bool prompt_moved = false;
  int64_t n_prompt_done = 0, n_prompt = 0;
  int64_t n_generated = 0;  // of the whole answer so far
  double prompt_ms = 0, predicted_ms = 0;

  bool finished = false;
  FinishReason reason = FinishReason::error;
  Statistics statistics;  // when finished
  std::string message;

  bool has_text() const { return !text.content.empty() || !text.reasoning.empty(); }
};

/// When the connection's thread is woken. Each time it takes a core from the model's pass, so a reply that is sent as a
/// whole waits for the end.
enum class Wake : uint8_t { each_part, at_end };

class AnswerChannel : public Listener {
 public:
  /// `tokenizer` must outlive the channel. `ticket` is released when the answer ends.
  AnswerChannel(const Tokenizer& tokenizer, const TextStreamOptions& text, Wake wake, std::shared_ptr<void> ticket);

  void on_prompt(int64_t done, int64_t total) override;
  bool on_token(const TokenEvent& event) override;
  void on_finish(FinishReason reason, const Statistics& statistics, const std::string& message) override;

  /// Readable while there is something to take.
  int fd() const { return ready_.fd(); }
  AnswerPart take();

  /// Valid once finished: the stop string that ended the text.
  std::optional<size_t> matched_stop() const;
  /// Prompt tokens that were not evaluated because a slot had them; known once the prompt is being read.
  int64_t n_cached() const;
  /// Milliseconds from now back to the request's start, and from there to the first token (0: none yet).
  double elapsed_ms() const;
  double first_token_ms() const;

 private:
  using Clock = std::chrono::steady_clock;
  void publish();  // with mutex_ held
  bool take_token(const TokenEvent& event);

  const Clock::time_point started_ = Clock::now();
  const Wake wake_;
  Event ready_;
  std::shared_ptr<void> ticket_;

  mutable std::mutex mutex_;  // guards what follows
  TextStream stream_;
  AnswerPart part_;
  std::vector<TokenEvent> undecided_;  // tokens whose text is held back
  std::string failure_;                // why on_token ended the answer
  std::optional<Clock::time_point> prompt_started_, first_token_;
  int64_t n_generated_ = 0, n_cached_ = 0;
};

}  // namespace onebit
