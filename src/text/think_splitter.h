// Splits a stream of text into reasoning (inside <think>...</think>) and content. Belongs to one stream; in comes text,
// out go the two parts, holding back what may be part of a tag.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace onebit {

/// What a stretch of the stream added to each part.
struct ThinkDelta {
  std::string reasoning;
  std::string content;
};

/// The block opens only before any content, and only once; later tags are content. White space at both ends of the
/// reasoning and at the start of the content is dropped. The result doesn't depend on how the text was cut up.
class ThinkSplitter {
 public:
  /// Where the prompt left off: `inside` when it opened the block, so that the first text is reasoning.
  enum class Start : bool { outside, inside };
  explicit ThinkSplitter(Start start, std::string open_tag = "<think>", std::string close_tag = "</think>");

  /// Appends to `delta` what is decided.
  void push(std::string_view text, ThinkDelta& delta);
  /// The end: what was held back is text of the part it stands in.
  void finish(ThinkDelta& delta);

 private:
  enum class State : char { before, inside_start, inside, content_start, content };
  void advance(ThinkDelta& delta);
  bool enter(State otherwise);
  bool find_close(ThinkDelta& delta);
  void add_reasoning(std::string_view text, ThinkDelta& delta);

  std::string open_tag_;
  std::string close_tag_;
  State state_;
  bool trim_start_ = true;  // no reasoning yet: white space is dropped
  std::string space_;       // white space behind the reasoning so far
  std::string held_;        // text whose part isn't decided
};

}  // namespace onebit
