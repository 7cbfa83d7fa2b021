// Template text -> tokens.
#include "text/jinja_lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja_text.h"
#include "text/unicode.h"

namespace onebit::jinja {

void syntax_error(int line, int column, const std::string& message) {
  refuse("chat template, line {}, column {}: {}", line, column, message);
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80); }
bool continues_name(char c) { return starts_name(c) || is_digit(c); }

/// Line ends as \n, and one final line end dropped, as Jinja reads every template.
std::string normalize(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalize(source)), source_(text_) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) read_text_and_tag();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  // ---- literal text, tags and their white space ----

  /// Literal text up to the next {{, {% or {#, and what follows it up to the matching end.
  void read_text_and_tag() {
    size_t open = pos_;
    while (open < source_.size() && !(source_[open] == '{' && open + 1 < source_.size() && is_tag(source_[open + 1]))) {
      ++open;
    }
    const std::string_view literal = source_.substr(pos_, open - pos_);
    if (open == source_.size()) return add_text(literal, open);
    const char tag = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : ' ';
    const bool signed_tag = sign == '-' || sign == '+';
    add_text(strip_before_tag(literal, tag, sign), open);
    mark_ = open;
    pos_ = open + 2 + signed_tag;
    if (tag == '#') return skip_comment();
    if (tag == '%' && skip_word("raw")) return read_raw();
    add(tag == '{' ? TokenKind::variable_begin : TokenKind::block_begin, source_.substr(open, 2));
    read_expression(tag == '{' ? '}' : '%');
  }

  static bool is_tag(char c) { return c == '{' || c == '%' || c == '#'; }

  /// `{%-` strips all white space before it; `{%` only the blanks of a line it begins (lstrip_blocks).
  std::string_view strip_before_tag(std::string_view literal, char tag, char sign) const {
    if (sign == '-') return literal.substr(0, strip(literal, Side::right).end);
    if (sign == '+' || tag == '{') return literal;
    const size_t newline = literal.rfind('\n');
    if (newline == literal.npos && !at_line_start_) return literal;
    const size_t line = newline == literal.npos ? 0 : newline + 1;
    return strip(literal.substr(line), Side::left).begin == literal.size() - line ? literal.substr(0, line) : literal;
  }

  /// Goes past the end of a tag: `-%}` takes the white space after it, `%}` one line end (trim_blocks) unless `+%}`.
  bool skip_tag_end(char kind) {
    const char sign = pos_ < source_.size() ? source_[pos_] : ' ';
    const bool has_sign = sign == '-' || (sign == '+' && kind != '}');
    const char end[] = {kind, '}'};
    if (source_.substr(std::min(pos_ + has_sign, source_.size()), 2) != std::string_view(end, 2)) return false;
    pos_ += has_sign + 2;
    if (sign == '-') {
      pos_ += strip(source_.substr(pos_), Side::left).begin;
    } else if (kind != '}' && sign != '+' && pos_ < source_.size() && source_[pos_] == '\n') {
      ++pos_;
    }
    at_line_start_ = pos_ > 0 && source_[pos_ - 1] == '\n';
    return true;
  }

  void skip_comment() {
    for (; pos_ < source_.size(); ++pos_) {
      if (skip_tag_end('#')) return;
    }
    fail_here("the comment has no end, '#}' is missing");
  }

  /// The text between {% raw %} and {% endraw %}; pos_ is behind the word raw.
  void read_raw() {
    skip_blanks();
    if (source_.substr(pos_, 2) == "%}") {
      pos_ += 2;  // the line end after {% raw %} stays
      at_line_start_ = false;
    } else if (!skip_tag_end('%')) {
      fail_here("'%}' is missing after 'raw'");
    }
    for (size_t open = source_.find("{%", pos_); open != source_.npos; open = source_.find("{%", open + 1)) {
      const std::string_view literal = source_.substr(pos_, open - pos_);
      const size_t begin = pos_;
      const char sign = open + 2 < source_.size() ? source_[open + 2] : ' ';
      pos_ = open + 2 + (sign == '-' || sign == '+');
      if (skip_word("endraw")) {
        skip_blanks();
        const size_t end = pos_;
        pos_ = begin;
        add_text(strip_before_tag(literal, '%', sign), end);
        if (skip_tag_end('%')) return;
        fail_here("'%}' is missing after 'endraw'");
      }
      pos_ = begin;
    }
    fail_here("the raw block has no end, '{% endraw %}' is missing");
  }

  // ---- inside {{ }} and {% %} ----

  /// Tokens up to the end of the tag; `kind` is the first character of that end.
  void read_expression(char kind) {
    const size_t begin = mark_;
    std::string open_brackets;
    while (true) {
      skip_blanks();
      mark_ = pos_;
      if (pos_ >= source_.size()) {
        mark_ = begin;
        fail_here(fmt::format("the tag has no end, '{}}}' is missing", kind));
      }
      if (open_brackets.empty() && skip_tag_end(kind)) {
        return add(kind == '}' ? TokenKind::variable_end : TokenKind::block_end, source_.substr(mark_, pos_ - mark_));
      }
      const char c = source_[pos_];
      if (c == '"' || c == '\'') {
        read_string(c);
      } else if (is_digit(c)) {
        read_number();
      } else if (starts_name(c)) {
        while (pos_ < source_.size() && continues_name(source_[pos_])) ++pos_;
        add(TokenKind::name, source_.substr(mark_, pos_ - mark_));
      } else {
        read_operator(open_brackets);
      }
    }
  }

  void read_operator(std::string& open_brackets) {
    static constexpr std::array<std::string_view, 6> kPairs = {"==", "!=", "<=", ">=", "**", "//"};
    const std::string_view two = source_.substr(pos_, 2);
    const bool is_pair = std::find(kPairs.begin(), kPairs.end(), two) != kPairs.end();
    const std::string_view op = two.substr(0, is_pair ? 2 : 1);
    constexpr std::string_view kSingles = "+-*/%~<>=()[]{}.,:|", kOpening = "([{", kClosing = ")]}";
    if (!is_pair && kSingles.find(op) == op.npos) fail_here(fmt::format("unexpected character '{}'", op));
    if (kOpening.find(op) != op.npos) open_brackets.push_back(kClosing[kOpening.find(op)]);
    if (kClosing.find(op) != op.npos) {
      if (open_brackets.empty() || open_brackets.back() != op[0]) fail_here(fmt::format("unexpected '{}'", op));
      open_brackets.pop_back();
    }
    pos_ += op.size();
    add(TokenKind::op, op);
  }

  /// Integers (also 0x, 0o, 0b and with _) and floats.
  void read_number() {
    const auto digits = [&](auto accepts) {
      while (pos_ < source_.size() && (accepts(source_[pos_]) || source_[pos_] == '_')) ++pos_;
    };
    const auto at = [&](size_t offset) { return pos_ + offset < source_.size() ? source_[pos_ + offset] : ' '; };
    if (at(0) == '0' && std::string_view("xXoObB").find(at(1)) != std::string_view::npos) {
      pos_ += 2;
      digits([](char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); });
      return add_number(TokenKind::integer);
    }
    TokenKind kind = TokenKind::integer;
    digits(is_digit);
    if (at(0) == '.' && is_digit(at(1))) {
      kind = TokenKind::floating;
      ++pos_;
      digits(is_digit);
    }
    const bool has_sign = at(1) == '+' || at(1) == '-';
    if ((at(0) == 'e' || at(0) == 'E') && is_digit(at(1 + has_sign))) {
      kind = TokenKind::floating;
      pos_ += 1 + has_sign;
      digits(is_digit);
    }
    add_number(kind);
  }

  void add_number(TokenKind kind) {
    std::string digits(source_.substr(mark_, pos_ - mark_));
    std::erase(digits, '_');
    add(kind, digits);
  }

  void read_string(char quote) {
    std::string value;
    for (++pos_; pos_ < source_.size() && source_[pos_] != quote;) {
      if (source_[pos_] == '\\') {
        read_escape(value);
      } else {
        value.push_back(source_[pos_++]);
      }
    }
    if (pos_ >= source_.size()) fail_here("the string has no end");
    ++pos_;
    add(TokenKind::string, value);
  }

  /// Python's escapes, except \N{name}.
  void read_escape(std::string& value) {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeant = "\\'\"\a\b\f\n\r\t\v";
    const char c = pos_ + 1 < source_.size() ? source_[pos_ + 1] : '\0';
    pos_ += 2;
    if (c == '\n') return;
    if (kLetters.find(c) != kLetters.npos) {
      value.push_back(kMeant[kLetters.find(c)]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      append_code_point(value, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
    } else if (c >= '0' && c <= '7') {
      --pos_;
      size_t n = 1;
      while (n < 3 && pos_ + n < source_.size() && source_[pos_ + n] >= '0' && source_[pos_ + n] <= '7') ++n;
      append_code_point(value, n, 8);
    } else if (c == 'N') {
      fail_here("the escape \\N{...} is not supported; write the character itself");
    } else {
      value.push_back('\\');
      --pos_;  // the character stands for itself
    }
  }

  /// The character whose number is the next `n_digits` digits.
  void append_code_point(std::string& value, size_t n_digits, uint32_t base) {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    uint64_t code = 0;
    for (size_t i = 0; i < n_digits; ++i, ++pos_) {
      const char c = pos_ < source_.size() ? source_[pos_] : ' ';
      const size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c | 0x20) : c);
      if (digit >= base) fail_here("a character escape has too few digits");
      code = code * base + digit;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) fail_here("a character escape is no character");
    append_utf8(value, static_cast<char32_t>(code));
  }

  // ---- small parts ----

  void skip_blanks() { pos_ += strip(source_.substr(pos_), Side::left).begin; }

  /// Goes past blanks and `word` when it stands here as a whole word.
  bool skip_word(std::string_view word) {
    const size_t begin = pos_ + strip(source_.substr(pos_), Side::left).begin;
    const size_t end = begin + word.size();
    if (source_.substr(begin, word.size()) != word) return false;
    if (end < source_.size() && continues_name(source_[end])) return false;
    pos_ = end;
    return true;
  }

  void add(TokenKind kind, std::string_view text) {
    locate(kind == TokenKind::end ? source_.size() : mark_);
    tokens_.push_back({kind, std::string(text), line_, column()});
  }

  void add_text(std::string_view text, size_t end) {
    mark_ = pos_;
    if (!text.empty()) add(TokenKind::text, text);
    pos_ = end;
  }

  [[noreturn]] void fail_here(const std::string& message) {
    counted_ = line_start_ = 0;  // a token may begin before the last one counted
    line_ = 1;
    locate(mark_);
    syntax_error(line_, column(), message);
  }

  /// Moves the line counter on to `pos`; positions only grow.
  void locate(size_t pos) {
    for (; counted_ < pos; ++counted_) {
      if (source_[counted_] == '\n') ++line_, line_start_ = counted_ + 1;
    }
  }
  int column() const { return static_cast<int>(counted_ - line_start_) + 1; }

  const std::string text_;
  const std::string_view source_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;             ///< next byte to read
  size_t mark_ = 0;            ///< start of the token being read
  bool at_line_start_ = true;  ///< pos_ followed a line end when the last tag ended
  size_t counted_ = 0;         ///< bytes whose lines are counted
  size_t line_start_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace onebit::jinja
