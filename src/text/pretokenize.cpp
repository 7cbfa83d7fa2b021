// The scanners, each beside the regular expression it stands for, and the table of known names.
#include "text/pretokenize.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "gguf/file.h"
#include "text/unicode.h"

namespace onebit {

namespace {

using namespace char_class;

// One row per value of tokenizer.ggml.pre that we know.
constexpr std::array<Pretokenizer, 10> kPretokenizers = {{
    {"qwen2", PretokenizerKind::qwen2, true, false},
    {"qwen35", PretokenizerKind::qwen35, true, false},
    {"llama-bpe", PretokenizerKind::llama3, false, true},
    {"gpt-2", PretokenizerKind::gpt2, false, false},
    {"smollm", PretokenizerKind::smollm, false, false},
    {"glm4", PretokenizerKind::llama3, false, false},
    // Other names of the same rules.
    {"deepseek-r1-qwen", PretokenizerKind::qwen2, true, false},
    {"llama3", PretokenizerKind::llama3, false, true},
    {"llama-v3", PretokenizerKind::llama3, false, true},
    {"chatglm-bpe", PretokenizerKind::llama3, false, false},
}};

constexpr std::array<uint8_t, 128> make_ascii_classes() {
  std::array<uint8_t, 128> classes{};
  for (int c = 'a'; c <= 'z'; ++c) classes[c] = classes[c - 'a' + 'A'] = kLetter;
  for (int c = '0'; c <= '9'; ++c) classes[c] = kNumber;
  for (int c = 0x09; c <= 0x0D; ++c) classes[c] = kSpace;
  classes[' '] = kSpace | kSeparator;
  return classes;
}
/// Only the classes that the scanners ask for.
constexpr std::array<uint8_t, 128> kAsciiClasses = make_ascii_classes();

/// The character at a position; size 0 at the end of the text.
struct Look {
  char32_t cp = 0;
  uint32_t size = 0;
  uint8_t classes = 0;
  bool is(uint8_t set) const { return (classes & set) != 0; }
};

Look look(std::string_view text, size_t pos) {
  if (pos >= text.size()) return {};
  const uint8_t byte = static_cast<uint8_t>(text[pos]);
  if (byte < 0x80) return {byte, 1, kAsciiClasses[byte]};
  const Utf8Char c = read_utf8(text, pos);
  return {c.code_point, c.size, classes_of(c.code_point)};
}

/// End of the run of characters in `set`, at most `limit` of them.
size_t run_end(std::string_view text, size_t pos, uint8_t set, size_t limit = SIZE_MAX) {
  for (; limit > 0; --limit) {
    const Look c = look(text, pos);
    if (!c.is(set)) break;
    pos += c.size;
  }
  return pos;
}

/// End of the run of characters in none of `set`.
size_t run_end_except(std::string_view text, size_t pos, uint8_t set) {
  for (Look c = look(text, pos); c.size != 0 && !c.is(set); c = look(text, pos)) pos += c.size;
  return pos;
}

bool is_newline(char32_t cp) { return cp == '\r' || cp == '\n'; }

/// Length of a contraction ('s 't 're 've 'm 'll 'd) at `pos`, where an apostrophe stands; 0: none.
template <bool kIgnoreCase>
size_t contraction_size(std::string_view text, size_t pos) {
  const auto letter = [&](size_t at) -> char {
    if (at >= text.size()) return 0;
    const char c = text[at];
    return kIgnoreCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(pos + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = letter(pos + 2);
  if ((second == 'e' && (first == 'r' || first == 'v')) || (first == 'l' && second == 'l')) return 3;
  // U+017F (long s) is an s when case is ignored.
  if (kIgnoreCase && text.substr(pos + 1, 2) == "\u017F") return 3;
  return 0;
}

/// Rest of the families' last rules at white space: \s+(?!\S)|\s+ . `text` ends where the lookahead may see the end.
size_t space_end(std::string_view text, size_t pos, bool ends_before_number) {
  size_t end = pos;
  size_t last = pos;  // start of the run's last character
  for (Look c = look(text, end); c.is(kSpace); c = look(text, end)) {
    last = end;
    end += c.size;
  }
  const Look next = look(text, end);
  if (next.size == 0 || (ends_before_number && next.is(kNumber))) return end;
  return last > pos ? last : end;
}

/// \s*[\r\n]+ : end of the last newline in the run of white space at `pos`; pos: there is none.
size_t newline_end(std::string_view text, size_t pos) {
  size_t result = pos;
  for (Look c = look(text, pos); c.is(kSpace); c = look(text, pos)) {
    pos += c.size;
    if (is_newline(c.cp)) result = pos;
  }
  return result;
}

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[W]+|\p{N}{1,D}| ?[^\s[W]\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
/// with W = kWord (\p{L}, or \p{L}\p{M}) and D = kDigits.
template <uint8_t kWord, size_t kDigits>
size_t word_piece_end(std::string_view text, size_t pos) {
  const Look c = look(text, pos);
  if (c.cp == '\'') {
    if (const size_t size = contraction_size<true>(text, pos)) return pos + size;
  }
  if (c.is(kNumber)) return run_end(text, pos, kNumber, kDigits);
  const size_t after = pos + c.size;
  if (c.is(kWord)) return run_end(text, after, kWord);
  const Look next = look(text, after);
  if (!is_newline(c.cp) && next.is(kWord)) return run_end(text, after, kWord);
  const Look other = c.cp == ' ' ? next : c;
  if (other.size != 0 && !other.is(kSpace | kWord | kNumber)) {
    size_t end = run_end_except(text, after, kSpace | kWord | kNumber);
    while (end < text.size() && is_newline(static_cast<uint8_t>(text[end]))) ++end;
    return end;
  }
  const size_t end = newline_end(text, pos);
  return end != pos ? end : space_end(text, pos, false);
}

/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// With kSingleDigits each \p{N} is cut off first, and the rule sees only what lies between them.
template <bool kSingleDigits>
size_t gpt2_piece_end(std::string_view text, size_t pos) {
  const Look c = look(text, pos);
  if (c.cp == '\'') {
    if (const size_t size = contraction_size<false>(text, pos)) return pos + size;
  }
  const size_t after = pos + c.size;
  if (kSingleDigits && c.is(kNumber)) return after;
  const Look first = c.cp == ' ' ? look(text, after) : c;
  if (first.is(kLetter)) return run_end(text, after, kLetter);
  if (first.is(kNumber) && !kSingleDigits) return run_end(text, after, kNumber);
  if (first.size != 0 && !first.is(kSpace | kLetter | kNumber)) {
    return run_end_except(text, after, kSpace | kLetter | kNumber);
  }
  return space_end(text, pos, kSingleDigits);
}

}  // namespace

const Pretokenizer& find_pretokenizer(std::string_view name) {
  const auto it =
      std::find_if(kPretokenizers.begin(), kPretokenizers.end(), [&](const Pretokenizer& p) { return p.name == name; });
  if (it == kPretokenizers.end()) {
    refuse("tokenizer.ggml.pre: \"{}\" is not a pre-tokenizer this engine has; it has {}", printable(name),
           known_pretokenizers());
  }
  return *it;
}

const Pretokenizer* find_pretokenizer(PretokenizerKind kind, bool nfc, bool ignore_merges) {
  for (const Pretokenizer& p : kPretokenizers) {
    if (p.kind == kind && p.nfc == nfc && p.ignore_merges == ignore_merges) return &p;
  }
  return nullptr;
}

std::string_view pretokenizer_regex(PretokenizerKind kind) {
  switch (kind) {
    case PretokenizerKind::qwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case PretokenizerKind::qwen35:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case PretokenizerKind::llama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case PretokenizerKind::gpt2:
    case PretokenizerKind::smollm:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  }
  return {};
}

std::string known_pretokenizers() {
  std::string names;
  for (const Pretokenizer& p : kPretokenizers) {
    if (!names.empty()) names += ", ";
    names += p.name;
  }
  return names;
}

size_t piece_end(PretokenizerKind kind, std::string_view text, size_t pos) {
  switch (kind) {
    case PretokenizerKind::qwen2:
      return word_piece_end<kLetter, 1>(text, pos);
    case PretokenizerKind::qwen35:
      return word_piece_end<kLetter | kMark, 1>(text, pos);
    case PretokenizerKind::llama3:
      return word_piece_end<kLetter, 3>(text, pos);
    case PretokenizerKind::gpt2:
      return gpt2_piece_end<false>(text, pos);
    case PretokenizerKind::smollm:
      return gpt2_piece_end<true>(text, pos);
  }
  return text.size();
}

}  // namespace onebit
