// UTF-8, character classes and normalisation form C. Owns nothing but the generated tables; in come bytes or code
// points, out go code points, classes and text. The data are those that Hugging Face's tokenizers use
// (tools/unicode_tables.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace onebit {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

enum class Utf8Status : uint8_t {
  valid,       ///< a code point
  invalid,     ///< bytes that can't be the start of one
  incomplete,  ///< the text ends inside a sequence that is right so far
};

/// What stands at a position of a text.
struct Utf8Char {
  char32_t code_point = kReplacementCharacter;  ///< U+FFFD unless valid
  uint32_t size = 0;                            ///< bytes taken: 1 to 4 (invalid, incomplete: 1 to 3)
  Utf8Status status = Utf8Status::invalid;
};

/// Reads the sequence at `pos` (pos < text.size()). Bytes that are not UTF-8 are taken in the longest stretches that
/// start a sequence, the rule by which each stretch stands for one U+FFFD.
Utf8Char read_utf8(std::string_view text, size_t pos);

/// Appends the UTF-8 of a code point (a surrogate or one above U+10FFFF: U+FFFD).
void append_utf8(std::string& text, char32_t code_point);

bool is_valid_utf8(std::string_view text);

/// Appends `bytes` to `text` with each stretch that isn't UTF-8 replaced by U+FFFD.
void append_valid_utf8(std::string& text, std::string_view bytes);

/// Sets of general categories, and the white space of regular expressions' \s. Combine with |.
namespace char_class {
inline constexpr uint8_t kLetter = 1;       ///< \p{L}
inline constexpr uint8_t kMark = 2;         ///< \p{M}
inline constexpr uint8_t kNumber = 4;       ///< \p{N}
inline constexpr uint8_t kPunctuation = 8;  ///< \p{P}
inline constexpr uint8_t kSymbol = 16;      ///< \p{S}
inline constexpr uint8_t kSeparator = 32;   ///< \p{Z}
inline constexpr uint8_t kSpace = 64;       ///< \s: 09-0D 20 85 A0 1680 2000-200A 2028 2029 202F 205F 3000
}  // namespace char_class

/// The classes a code point belongs to (0: none of them; also above U+10FFFF).
uint8_t classes_of(char32_t code_point);

/// General category as the index into "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc
/// Cf Cs Co" (0: not assigned).
uint8_t general_category(char32_t code_point);

/// Canonical combining class.
uint8_t combining_class(char32_t code_point);

/// `text` (valid UTF-8) in normalisation form C: `text` itself when nothing in it can change, else a view of `buffer`.
std::string_view to_nfc(std::string_view text, std::string& buffer);

}  // namespace onebit
