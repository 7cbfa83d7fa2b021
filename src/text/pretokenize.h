// Pre-tokenizers: how a text is cut into pieces before byte-pair merging. Owns the table of known names and one
// hand-written scanner per family; in comes valid UTF-8, out go piece boundaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace onebit {

/// The scanners. Each is the deterministic form of one published regular expression (docs/tokenizer.md).
enum class PretokenizerKind : uint8_t {
  qwen2,   ///< words without marks, single digits
  qwen35,  ///< words with marks, single digits
  llama3,  ///< words without marks, up to three digits
  gpt2,    ///< case-sensitive contractions, runs of digits
  smollm,  ///< digits cut off one by one, then gpt2 on what lies between them
};

/// What the value of `tokenizer.ggml.pre` stands for.
struct Pretokenizer {
  std::string_view name;  ///< the value of tokenizer.ggml.pre
  PretokenizerKind kind = PretokenizerKind::gpt2;
  bool nfc = false;            ///< text is brought into NFC before it is cut
  bool ignore_merges = false;  ///< a piece that is a token as a whole is not merged
};

/// The entry for a value of `tokenizer.ggml.pre`. Throws Error(refused) naming it and the known ones.
const Pretokenizer& find_pretokenizer(std::string_view name);

/// The entry with these rules under its usual name; nullptr: no value of `tokenizer.ggml.pre` stands for them.
const Pretokenizer* find_pretokenizer(PretokenizerKind kind, bool nfc, bool ignore_merges);

/// The published regular expression that a scanner stands for (smollm: after each \p{N} has been cut off).
std::string_view pretokenizer_regex(PretokenizerKind kind);

/// The known values of `tokenizer.ggml.pre`, comma separated.
std::string known_pretokenizers();

/// End (byte offset) of the piece that starts at `pos`; pos < text.size(), `text` is valid UTF-8, `pos` a boundary.
/// The result is greater than `pos`.
size_t piece_end(PretokenizerKind kind, std::string_view text, size_t pos);

}  // namespace onebit
