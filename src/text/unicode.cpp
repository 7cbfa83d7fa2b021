// UTF-8, character classes and normalisation form C (Unicode Standard Annex 15) over the generated tables.
#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <vector>

#include "text/unicode_tables.h"

namespace onebit {

namespace {

using namespace unicode_tables;

constexpr char32_t kLimit = 0x110000;
constexpr uint8_t kCategoryBits = 0x1F;
constexpr uint8_t kSpaceBit = 0x20;
constexpr uint8_t kNfcBit = 0x40;
constexpr uint8_t kCombiningBit = 0x80;

constexpr std::array<uint8_t, 32> make_category_classes() {
  std::array<uint8_t, 32> classes{};
  for (int c = 1; c <= 5; ++c) classes[c] = char_class::kLetter;
  for (int c = 6; c <= 8; ++c) classes[c] = char_class::kMark;
  for (int c = 9; c <= 11; ++c) classes[c] = char_class::kNumber;
  for (int c = 12; c <= 18; ++c) classes[c] = char_class::kPunctuation;
  for (int c = 19; c <= 22; ++c) classes[c] = char_class::kSymbol;
  for (int c = 23; c <= 25; ++c) classes[c] = char_class::kSeparator;
  return classes;
}
constexpr std::array<uint8_t, 32> kCategoryClasses = make_category_classes();

/// The properties byte of kRuns. A page's run is a hint; most pages are one run, the others are searched.
uint8_t properties(char32_t cp) {
  if (cp >= kLimit) return 0;
  const size_t page = cp >> 8;
  const auto first = kRuns.begin() + kPages[page];
  const auto last = page + 1 < kPagesSize ? kRuns.begin() + kPages[page + 1] + 1 : kRuns.end();
  const uint32_t key = cp << 8 | 0xFF;
  return static_cast<uint8_t>(*(std::upper_bound(first, last, key) - 1));
}

constexpr uint64_t kPartMask = (1u << 21) - 1;

/// Parts of a canonical decomposition; second 0: none. first 0: not decomposable.
struct Parts {
  char32_t first = 0;
  char32_t second = 0;
};

// Hangul syllables are computed: leading consonant, vowel, optional trailing consonant.
constexpr char32_t kSyllables = 0xAC00, kLeaders = 0x1100, kVowels = 0x1161, kTrailers = 0x11A7;
constexpr char32_t kLeaderCount = 19, kVowelCount = 21, kTrailerCount = 28;
constexpr char32_t kSyllableCount = kLeaderCount * kVowelCount * kTrailerCount;

Parts decompose(char32_t cp) {
  if (cp - kSyllables < kSyllableCount) {
    const char32_t index = cp - kSyllables;
    const char32_t trailer = index % kTrailerCount;
    if (trailer != 0) return {cp - trailer, kTrailers + trailer};
    return {kLeaders + index / (kVowelCount * kTrailerCount), kVowels + index / kTrailerCount % kVowelCount};
  }
  const auto it = std::lower_bound(kDecompositions.begin(), kDecompositions.end(), static_cast<uint64_t>(cp) << 42);
  if (it == kDecompositions.end() || *it >> 42 != cp) return {};
  return {static_cast<char32_t>(*it >> 21 & kPartMask), static_cast<char32_t>(*it & kPartMask)};
}

/// The character that `first` and `second` compose to, 0: none.
char32_t compose(char32_t first, char32_t second) {
  if (first - kLeaders < kLeaderCount && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeaders) * kVowelCount + (second - kVowels)) * kTrailerCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTrailerCount == 0 && second > kTrailers &&
      second - kTrailers < kTrailerCount) {
    return first + (second - kTrailers);
  }
  constexpr uint64_t pair_mask = (uint64_t{1} << 42) - 1;
  const uint64_t pair = static_cast<uint64_t>(first) << 21 | second;
  const auto it = std::lower_bound(kCompositions.begin(), kCompositions.end(), pair, [](uint16_t index, uint64_t want) {
    return (kDecompositions[index] & pair_mask) < want;
  });
  if (it == kCompositions.end() || (kDecompositions[*it] & pair_mask) != pair) return 0;
  return static_cast<char32_t>(kDecompositions[*it] >> 42);
}

struct Char {
  char32_t cp;
  uint8_t combining;
};

/// Appends the full canonical decomposition. A decomposition's first part may decompose again, the second never does.
void append_decomposed(std::vector<Char>& out, char32_t cp) {
  std::array<char32_t, 8> seconds;  // the deepest chain of the tables has 3
  size_t n_seconds = 0;
  for (Parts parts = decompose(cp); parts.first != 0 && n_seconds < seconds.size(); parts = decompose(cp)) {
    cp = parts.first;
    if (parts.second != 0) seconds[n_seconds++] = parts.second;
  }
  out.push_back({cp, combining_class(cp)});
  while (n_seconds > 0) {
    const char32_t second = seconds[--n_seconds];
    out.push_back({second, combining_class(second)});
  }
}

/// Stable order by combining class within each run of characters that have one.
void order_marks(std::vector<Char>& chars) {
  const auto before = [](const Char& a, const Char& b) { return a.combining < b.combining; };
  for (auto it = chars.begin(); it != chars.end();) {
    if (it->combining == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, chars.end(), [](const Char& c) { return c.combining == 0; });
    std::stable_sort(it, end, before);
    it = end;
  }
}

/// Composes in place: each character with the last starter, unless one of the same or a higher class stands between.
void compose_all(std::vector<Char>& chars) {
  size_t n_out = 0;
  size_t starter = SIZE_MAX;
  for (size_t i = 0; i < chars.size(); ++i) {
    const Char c = chars[i];
    if (starter != SIZE_MAX) {
      const bool adjacent = n_out == starter + 1;
      const bool blocked = !adjacent && (chars[n_out - 1].combining == 0 || chars[n_out - 1].combining >= c.combining);
      const char32_t composed = blocked ? 0 : compose(chars[starter].cp, c.cp);
      if (composed != 0) {
        chars[starter].cp = composed;
        continue;
      }
    }
    if (c.combining == 0) starter = n_out;
    chars[n_out++] = c;
  }
  chars.resize(n_out);
}

/// Where the first stretch that may change begins: at the last starter before it. text.size(): nothing may change.
size_t find_change(std::string_view text, size_t pos) {
  size_t starter = pos;
  uint8_t last_class = 0;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0xCC) {  // below U+0300: starters that compose with nothing before them
      starter = pos;
      last_class = 0;
      pos += static_cast<uint8_t>(text[pos]) < 0x80 ? 1 : 2;
      continue;
    }
    const Utf8Char c = read_utf8(text, pos);
    const uint8_t flags = properties(c.code_point);
    if (flags & kNfcBit) return starter;
    const uint8_t combining = flags & kCombiningBit ? combining_class(c.code_point) : 0;
    if (combining != 0 && combining < last_class) return starter;
    if (combining == 0) starter = pos;
    last_class = combining;
    pos += c.size;
  }
  return text.size();
}

/// End of a stretch that starts at `pos`: the next character that nothing before it can change.
size_t find_stable(std::string_view text, size_t pos) {
  pos += read_utf8(text, pos).size;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0xCC) return pos;
    const Utf8Char c = read_utf8(text, pos);
    if ((properties(c.code_point) & (kNfcBit | kCombiningBit)) == 0) return pos;
    pos += c.size;
  }
  return pos;
}

constexpr bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

Utf8Char read_utf8(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, Utf8Status::valid};
  if (lead < 0xC2 || lead > 0xF4) return {kReplacementCharacter, 1, Utf8Status::invalid};
  const uint32_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t cp = lead & (0x7F >> size);
  for (uint32_t i = 1; i < size; ++i) {
    if (pos + i >= text.size()) return {kReplacementCharacter, i, Utf8Status::incomplete};
    const uint8_t next = byte(i);
    const bool fits = i == 1 ? next >= low && next <= high : is_continuation(next);
    if (!fits) return {kReplacementCharacter, i, Utf8Status::invalid};
    cp = cp << 6 | (next & 0x3F);
  }
  return {cp, size, Utf8Status::valid};
}

void append_utf8(std::string& text, char32_t cp) {
  if (cp >= kLimit || (cp >= 0xD800 && cp < 0xE000)) cp = kReplacementCharacter;
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (cp >> shift & 0x3F)); };
  if (cp < 0x80) {
    text += static_cast<char>(cp);
  } else if (cp < 0x800) {
    text += static_cast<char>(0xC0 | cp >> 6);
    tail(0);
  } else if (cp < 0x10000) {
    text += static_cast<char>(0xE0 | cp >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | cp >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = read_utf8(text, pos);
    if (c.status != Utf8Status::valid) return false;
    pos += c.size;
  }
  return true;
}

void append_valid_utf8(std::string& text, std::string_view bytes) {
  size_t valid_from = 0;
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Char c = read_utf8(bytes, pos);
    if (c.status != Utf8Status::valid) {
      text.append(bytes, valid_from, pos - valid_from);
      append_utf8(text, kReplacementCharacter);
      valid_from = pos + c.size;
    }
    pos += c.size;
  }
  text.append(bytes, valid_from);
}

uint8_t classes_of(char32_t code_point) {
  const uint8_t flags = properties(code_point);
  return kCategoryClasses[flags & kCategoryBits] | (flags & kSpaceBit ? char_class::kSpace : 0);
}

uint8_t general_category(char32_t code_point) { return properties(code_point) & kCategoryBits; }

uint8_t combining_class(char32_t code_point) {
  if (code_point >= kLimit) return 0;
  const auto it = std::lower_bound(kCombining.begin(), kCombining.end(), static_cast<uint32_t>(code_point) << 8);
  return it != kCombining.end() && *it >> 8 == code_point ? static_cast<uint8_t>(*it) : 0;
}

std::string_view to_nfc(std::string_view text, std::string& buffer) {
  size_t change = find_change(text, 0);
  if (change == text.size()) return text;
  buffer.clear();
  std::vector<Char> chars;
  for (size_t done = 0; done < text.size(); change = find_change(text, done)) {
    buffer.append(text, done, change - done);
    done = change;
    if (done == text.size()) break;
    const size_t end = find_stable(text, done);
    chars.clear();
    while (done < end) {
      const Utf8Char c = read_utf8(text, done);
      append_decomposed(chars, c.code_point);
      done += c.size;
    }
    order_marks(chars);
    compose_all(chars);
    for (const Char& c : chars) append_utf8(buffer, c.cp);
  }
  return buffer;
}

}  // namespace onebit
