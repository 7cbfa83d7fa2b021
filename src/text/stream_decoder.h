// From token ids to text that can be sent: whole UTF-8 sequences only, and nothing that may turn out to be part of a
// stop string. Each object belongs to one stream; in come ids (or text), out goes text appended to the caller's string.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace onebit {

/// Makes bytes whole UTF-8: holds back an incomplete sequence (at most 3 bytes), replaces what can't become one by
/// U+FFFD. The text is the same however the bytes are cut up.
class Utf8Stream {
 public:
  /// Appends to `text` what is complete.
  void push(std::string_view bytes, std::string& text);
  /// The end: a sequence still held back becomes U+FFFD.
  void finish(std::string& text);
  /// Number of bytes held back.
  size_t held() const { return n_held_; }

 private:
  std::array<char, 3> held_{};
  size_t n_held_ = 0;
};

/// Ids to text. push(id...) then finish() gives exactly Tokenizer::decode(ids).
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, ShowControl show_control = ShowControl::no)
      : tokenizer_(&tokenizer), show_control_(show_control) {}
  /// Appends the text that `id` completes (possibly none). Throws Error(usage) for an id outside the vocabulary.
  void push(int32_t id, std::string& text);
  void finish(std::string& text) { stream_.finish(text); }

 private:
  const Tokenizer* tokenizer_;
  ShowControl show_control_;
  Utf8Stream stream_;
};

/// Looks for stop strings in a stream. The first one to be complete ends the text, just before where it starts (of
/// several complete at the same byte the longest counts), so the result doesn't depend on how the text was cut up.
class StopStrings {
 public:
  /// Empty strings are ignored.
  explicit StopStrings(const std::vector<std::string>& stops);

  /// Appends to `out` the part of the text so far that no stop string can reach any more. True once a stop string is
  /// complete: `out` then has all the text before it, and further text is ignored.
  bool push(std::string_view text, std::string& out);
  /// The end without a stop string: what was held back is text.
  void finish(std::string& out);

  bool stopped() const { return matched_.has_value(); }
  /// The stop string that ended the text (index into the constructor's list).
  std::optional<size_t> matched() const { return matched_; }
  /// Number of bytes held back.
  size_t held() const { return held_.size(); }

 private:
  /// A node of the automaton over all stop strings: one prefix of some of them.
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;  ///< by byte, sorted
    uint32_t fail = 0;                               ///< node of the longest proper suffix that is a prefix too
    uint32_t depth = 0;                              ///< length of the prefix
    std::optional<size_t> stop;                      ///< longest stop string that ends here
  };
  uint32_t child(uint32_t node, uint8_t byte) const;
  uint32_t step(uint32_t node, uint8_t byte) const;
  void add(const std::string& stop, size_t index);
  void link();

  std::vector<Node> nodes_;
  std::vector<size_t> lengths_;
  uint32_t node_ = 0;
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace onebit
