// The text of one answer as it is generated: ids in, text deltas out, split into reasoning and content and cut at a
// stop string. Everything that shows an answer goes through here, so streamed and whole replies are the same text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/stream_decoder.h"
#include "text/think_splitter.h"
#include "text/tokenizer.h"

namespace onebit {

struct TextStreamOptions {
  std::vector<std::string> stop = {};  // the first of them to appear, in reasoning or content, ends the text before it
  /// The <think> block goes to ThinkDelta::reasoning; otherwise all text is content, tags included.
  bool split_reasoning = false;
  /// The prompt opened a <think> block: the text starts inside it. Unsplit text then begins with the opening tag, so
  /// that it is complete.
  bool thinking = false;
  ShowControl show_control = ShowControl::no;
};

class TextStream {
 public:
  /// `tokenizer` must outlive the stream.
  TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options);

  /// Appends the text that `id` decides (possibly none). True once a stop string is complete: generation can end, and
  /// further ids are ignored. Throws Error(usage) for an id outside the vocabulary.
  bool push(int32_t id, ThinkDelta& delta);
  /// The end of the answer: appends what was held back.
  void finish(ThinkDelta& delta);

  /// Index of the stop string that ended the text.
  std::optional<size_t> matched_stop() const { return stops_.matched(); }

 private:
  void add(const std::string& text, ThinkDelta& delta);

  StreamDecoder decoder_;
  StopStrings stops_;
  std::optional<ThinkSplitter> splitter_;
  std::string lead_;  // text before the first token's
};

}  // namespace onebit
