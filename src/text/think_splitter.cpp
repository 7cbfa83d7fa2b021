// One state per place in the stream; each step takes from what is held back as much as is decided.
#include "text/think_splitter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace onebit {

namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

/// Length of the white space at the start.
size_t leading_space(std::string_view text) { return std::min(text.find_first_not_of(kWhiteSpace), text.size()); }

/// Length of the longest end of `text` that is a proper start of `tag`.
size_t partial_tag(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

ThinkSplitter::ThinkSplitter(Start start, std::string open_tag, std::string close_tag)
    : open_tag_(std::move(open_tag)),
      close_tag_(std::move(close_tag)),
      state_(start == Start::inside ? State::inside_start : State::before) {
  CHECK(!open_tag_.empty() && !close_tag_.empty());
}

void ThinkSplitter::push(std::string_view text, ThinkDelta& delta) {
  if (state_ == State::content) {
    delta.content += text;
    return;
  }
  held_ += text;
  advance(delta);
}

/// Takes what is decided out of held_, state by state, until a state needs more text.
void ThinkSplitter::advance(ThinkDelta& delta) {
  bool moved = true;
  while (moved) {
    switch (state_) {
      case State::before:
        moved = enter(State::content);
        break;
      case State::inside_start:
        moved = enter(State::inside);
        break;
      case State::inside:
        moved = find_close(delta);
        break;
      case State::content_start:
        held_.erase(0, leading_space(held_));
        moved = !held_.empty();
        if (moved) state_ = State::content;
        break;
      case State::content:
        delta.content += held_;
        held_.clear();
        moved = false;
        break;
    }
  }
}

/// At the start: white space is dropped, an opening tag leads inside (a second one after the prompt's too), anything
/// else to `otherwise`. False: more text is needed.
bool ThinkSplitter::enter(State otherwise) {
  held_.erase(0, leading_space(held_));
  if (held_.starts_with(open_tag_)) {
    held_.erase(0, open_tag_.size());
    state_ = State::inside;
    return true;
  }
  if (open_tag_.starts_with(held_)) return false;
  state_ = otherwise;
  return true;
}

/// Inside the block: reasoning up to the closing tag. False: more text is needed.
bool ThinkSplitter::find_close(ThinkDelta& delta) {
  const size_t close = held_.find(close_tag_);
  const bool closed = close != std::string::npos;
  const size_t size = closed ? close : held_.size() - partial_tag(held_, close_tag_);
  add_reasoning(std::string_view(held_).substr(0, size), delta);
  held_.erase(0, closed ? size + close_tag_.size() : size);
  if (closed) {
    space_.clear();
    state_ = State::content_start;
  }
  return closed;
}

/// White space is kept apart until it is known to be neither the start nor the end.
void ThinkSplitter::add_reasoning(std::string_view text, ThinkDelta& delta) {
  if (trim_start_) text.remove_prefix(leading_space(text));
  if (text.empty()) return;
  trim_start_ = false;
  const size_t end = text.find_last_not_of(kWhiteSpace) + 1;  // 0: white space only
  if (end > 0) {
    delta.reasoning += space_;
    space_.clear();
    delta.reasoning += text.substr(0, end);
  }
  space_ += text.substr(end);
}

void ThinkSplitter::finish(ThinkDelta& delta) {
  if (state_ == State::inside_start || state_ == State::inside) {
    add_reasoning(held_, delta);
  } else {
    delta.content += held_;
  }
  held_.clear();
  space_.clear();
}

}  // namespace onebit
