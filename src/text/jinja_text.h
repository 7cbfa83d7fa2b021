// A string that remembers which of its bytes came from the request, and Python's str operations on it. Every operation
// is made of append and slice, so the marks travel by themselves. Positions are bytes; `char` functions count code
// points.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onebit::jinja {

/// A byte range [begin, end).
struct Span {
  size_t begin;
  size_t end;
};

class Text {
 public:
  Text() = default;
  explicit Text(std::string_view bytes, bool from_input = false) { append(bytes, from_input); }

  const std::string& str() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// The ranges that came from the request: sorted, apart from each other.
  const std::vector<Span>& input_spans() const { return input_; }

  void append(std::string_view bytes, bool from_input = false);
  void append(const Text& other) { append(other, 0, other.size()); }
  /// Appends bytes [begin, end) of `other` (not this text itself).
  void append(const Text& other, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;

  /// Set by the filter `safe`: text that is already HTML, to which `+` adds only escaped text.
  bool is_markup = false;

 private:
  std::string bytes_;
  std::vector<Span> input_;
};

/// The code point at `pos` (< size); moves `pos` behind it.
char32_t next_char(std::string_view s, size_t& pos);
int64_t count_chars(std::string_view s);
/// Byte position of code point `index` (0 <= index; the end of the string when there are fewer).
size_t char_position(std::string_view s, int64_t index);
/// True for the characters that str.isspace() accepts.
bool is_space(char32_t code_point);

// str methods, as in Python.
enum class Side { both, left, right };
/// The part of `s` left when white space, or the characters of `chars`, is taken from its ends.
Span strip(std::string_view s, Side side, const std::string* chars = nullptr);
/// Parts between separators, at most `max` splits when max >= 0, counted from the right when `from_right`.
std::vector<Span> split(std::string_view s, std::string_view separator, int64_t max, bool from_right);
/// Parts between runs of white space.
std::vector<Span> split_space(std::string_view s, int64_t max, bool from_right);
/// Lines without their ends, or with them when `keep_ends`.
std::vector<Span> split_lines(std::string_view s, bool keep_ends);
/// `s` with the first `max` (all when negative) occurrences of `from` replaced.
Text replace(const Text& s, std::string_view from, const Text& to, int64_t max);

/// How letters change; those outside ASCII stay as they are. `title` capitalizes every run of letters (str.title),
/// `words` what follows white space or one of - ( { [ < (the filter `title`).
enum class Case { upper, lower, capitalize, title, words };
Text change_case(const Text& s, Case to);
/// HTML escapes for & < > " '.
Text escape_html(const Text& s);

}  // namespace onebit::jinja
