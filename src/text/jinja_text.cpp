// Text and Python's str operations on it.
#include "text/jinja_text.h"

#include <algorithm>

#include "text/unicode.h"

namespace onebit::jinja {

void Text::append(std::string_view bytes, bool from_input) {
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (!from_input || bytes.empty()) return;
  if (!input_.empty() && input_.back().end == begin) {
    input_.back().end = bytes_.size();
  } else {
    input_.push_back({begin, bytes_.size()});
  }
}

void Text::append(const Text& other, size_t begin, size_t end) {
  const std::string_view bytes = other.bytes_;
  // The first span that ends behind `begin`.
  auto span = std::partition_point(other.input_.begin(), other.input_.end(), [&](Span s) { return s.end <= begin; });
  for (; span != other.input_.end() && span->begin < end; ++span) {
    const size_t from = std::max(span->begin, begin), to = std::min(span->end, end);
    append(bytes.substr(begin, from - begin), false);
    append(bytes.substr(from, to - from), true);
    begin = to;
  }
  append(bytes.substr(begin, end - begin), false);
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  out.is_markup = is_markup;
  return out;
}

char32_t next_char(std::string_view s, size_t& pos) {
  if (static_cast<uint8_t>(s[pos]) < 0x80) return static_cast<uint8_t>(s[pos++]);
  const Utf8Char c = read_utf8(s, pos);
  pos += c.size;
  return c.code_point;
}

int64_t count_chars(std::string_view s) {
  int64_t n = 0;
  for (size_t pos = 0; pos < s.size(); ++n) next_char(s, pos);
  return n;
}

size_t char_position(std::string_view s, int64_t index) {
  size_t pos = 0;
  while (index-- > 0 && pos < s.size()) next_char(s, pos);
  return pos;
}

bool is_space(char32_t c) { return (c >= 0x1c && c <= 0x1f) || (classes_of(c) & char_class::kSpace) != 0; }

namespace {

/// Start of the code point that ends at `end` (> 0).
size_t previous_char(std::string_view s, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(s[begin]) & 0xc0u) == 0x80u) --begin;
  size_t pos = begin;
  next_char(s, pos);
  return pos == end ? begin : end - 1;
}

bool contains_char(std::string_view chars, char32_t c) {
  for (size_t pos = 0; pos < chars.size();) {
    if (next_char(chars, pos) == c) return true;
  }
  return false;
}

}  // namespace

Span strip(std::string_view s, Side side, const std::string* chars) {
  const auto goes = [&](size_t pos) {
    const char32_t c = next_char(s, pos);
    return chars ? contains_char(*chars, c) : is_space(c);
  };
  Span rest{0, s.size()};
  if (side != Side::right) {
    while (rest.begin < rest.end && goes(rest.begin)) next_char(s, rest.begin);
  }
  if (side != Side::left) {
    while (rest.end > rest.begin) {
      const size_t begin = previous_char(s, rest.end);
      if (!goes(begin)) break;
      rest.end = begin;
    }
  }
  return rest;
}

std::vector<Span> split(std::string_view s, std::string_view separator, int64_t max, bool from_right) {
  std::vector<Span> parts;
  if (from_right) {
    size_t end = s.size();
    for (; max != 0; --max) {
      const size_t found = end < separator.size() ? s.npos : s.rfind(separator, end - separator.size());
      if (found == s.npos) break;
      parts.push_back({found + separator.size(), end});
      end = found;
    }
    parts.push_back({0, end});
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  for (; max != 0; --max) {
    const size_t found = s.find(separator, begin);
    if (found == s.npos) break;
    parts.push_back({begin, found});
    begin = found + separator.size();
  }
  parts.push_back({begin, s.size()});
  return parts;
}

std::vector<Span> split_space(std::string_view s, int64_t max, bool from_right) {
  std::vector<Span> words;
  for (size_t pos = 0; pos < s.size();) {
    const size_t begin = pos;
    if (is_space(next_char(s, pos))) continue;
    if (!words.empty() && words.back().end == begin) {
      words.back().end = pos;
    } else {
      words.push_back({begin, pos});
    }
  }
  const size_t limit = max < 0 ? words.size() : static_cast<size_t>(max) + 1;
  if (words.size() <= limit) return words;
  // Only `max` words are split off; the others stay together, stripped on the outer side.
  if (from_right) {
    const size_t last = words.size() - limit;
    words[last].begin = 0;
    words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(last));
  } else {
    words.resize(limit);
    words.back().end = s.size();
  }
  return words;
}

std::vector<Span> split_lines(std::string_view s, bool keep_ends) {
  std::vector<Span> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < s.size();) {
    const size_t end = pos;
    const char32_t c = next_char(s, pos);
    const bool breaks = (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    lines.push_back({begin, keep_ends ? pos : end});
    begin = pos;
  }
  if (begin < s.size()) lines.push_back({begin, s.size()});
  return lines;
}

Text replace(const Text& s, std::string_view from, const Text& to, int64_t max) {
  Text out;
  size_t done = 0;
  for (size_t pos = 0; max != 0 && pos <= s.size(); --max) {
    const size_t found = s.str().find(from, pos);
    if (found == std::string::npos) break;
    out.append(s, done, found);
    out.append(to);
    done = pos = found + from.size();
    if (from.empty()) {  // an empty pattern matches in front of every character and at the end
      if (pos == s.size()) break;
      next_char(s.str(), pos);
    }
  }
  out.append(s, done, s.size());
  return out;
}

Text change_case(const Text& s, Case to) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  std::string bytes = s.str();
  bool in_word = false;
  for (char& c : bytes) {
    const bool up = to == Case::upper || (to != Case::lower && !in_word);
    if (letter(c)) c = static_cast<char>(up ? c & ~0x20 : c | 0x20);
    if (to == Case::words) {
      in_word = std::string_view("-({[< \t\n\r\v\f").find(c) == std::string_view::npos;
    } else {
      in_word = to == Case::capitalize || letter(c) || (c & 0x80);
    }
  }
  Text out;
  size_t done = 0;
  for (const Span& span : s.input_spans()) {
    out.append(std::string_view(bytes).substr(done, span.begin - done), false);
    out.append(std::string_view(bytes).substr(span.begin, span.end - span.begin), true);
    done = span.end;
  }
  out.append(std::string_view(bytes).substr(done), false);
  return out;
}

Text escape_html(const Text& s) {
  Text out;
  size_t done = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    const char* name = nullptr;
    switch (s.str()[i]) {
      case '&':
        name = "&amp;";
        break;
      case '<':
        name = "&lt;";
        break;
      case '>':
        name = "&gt;";
        break;
      case '"':
        name = "&#34;";
        break;
      case '\'':
        name = "&#39;";
        break;
      default:
        continue;
    }
    out.append(s, done, i);
    out.append(name);
    done = i + 1;
  }
  out.append(s, done, s.size());
  return out;
}

}  // namespace onebit::jinja
