// Three steps in a row: ids to whole characters, the search for stop strings, the split at the tags.
#include "engine/text_stream.h"

namespace onebit {

TextStream::TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options)
    : decoder_(tokenizer, options.show_control), stops_(options.stop) {
  using Start = ThinkSplitter::Start;
  if (options.split_reasoning) splitter_.emplace(options.thinking ? Start::inside : Start::outside);
  if (!options.split_reasoning && options.thinking) lead_ = "<think>\n";
}

bool TextStream::push(int32_t id, ThinkDelta& delta) {
  if (stops_.stopped()) return true;
  std::string decoded, text;
  decoder_.push(id, decoded);
  stops_.push(decoded, text);
  add(text, delta);
  return stops_.stopped();
}

void TextStream::finish(ThinkDelta& delta) {
  std::string decoded, text;
  decoder_.finish(decoded);
  if (!stops_.stopped() && !stops_.push(decoded, text)) stops_.finish(text);
  add(text, delta);
  if (splitter_) splitter_->finish(delta);
}

void TextStream::add(const std::string& text, ThinkDelta& delta) {
  if (splitter_) {
    splitter_->push(text, delta);
  } else {
    delta.content += lead_;
    delta.content += text;
    lead_.clear();
  }
}

}  // namespace onebit
