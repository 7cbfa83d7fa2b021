// Byte-level BPE tokenizer. Owns the vocabulary, the merges and the added tokens; in comes text, out go token ids, and
// the reverse. Ids equal those of Hugging Face's tokenizers. An object is immutable: any number of threads may share
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenize.h"

namespace onebit {

class GgufFile;

/// Values of tokenizer.ggml.token_type.
enum class TokenType : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// Ids with a role, as far as the file names them.
struct SpecialIds {
  std::optional<int32_t> bos, eos, eot, eom, unk, sep, pad, mask;
  std::optional<int32_t> fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep;
};

/// Everything a file says about its tokenizer; what a converter writes and what Tokenizer is made of.
struct TokenizerData {
  std::vector<std::string> tokens;  ///< [n_vocab] as in the file: normal tokens in the byte-level alphabet
  std::vector<TokenType> types;     ///< [n_vocab]
  std::vector<std::string> merges;  ///< "left right", lowest rank first
  std::string pre;                  ///< value of tokenizer.ggml.pre, e.g. "qwen2"
  SpecialIds special;
  bool add_bos = false;
  bool add_eos = false;
  bool ignore_merges = false;  ///< a piece that is a token as a whole is emitted without merging
  bool nfc = false;            ///< text between added tokens is brought into NFC first
};

/// Reads the tokenizer.ggml.* keys. Throws Error(refused) when one is missing, of the wrong type or out of range, or
/// when the tokenizer is of a kind this engine doesn't have.
TokenizerData tokenizer_data_from_gguf(const GgufFile& file);

/// Whether the text of control tokens (`<|im_end|>`) in the input becomes those tokens or stays text. User-defined
/// tokens (`<think>`) are recognised either way.
enum class ParseSpecial : bool { no, yes };

/// Whether decoding writes the text of control tokens.
enum class ShowControl : bool { no, yes };

/// A stretch of input, as a chat template renders it: its own text with special tokens, a user's without.
struct TextSegment {
  std::string_view text;
  ParseSpecial parse_special = ParseSpecial::no;
};

class Tokenizer {
 public:
  /// Throws Error(refused) when the data contradicts itself (ids out of range, merges of unknown tokens).
  explicit Tokenizer(const TokenizerData& data);

  /// Ids of `text`; nothing is added at the ends (see add_special_ids). Invalid UTF-8 is read as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, ParseSpecial parse_special) const;

  /// Ids of the segments joined: cut and merged as one text, but a control token is recognised only where it lies in
  /// segments that allow it.
  std::vector<int32_t> encode(std::span<const TextSegment> segments) const;

  /// Puts bos in front and eos behind where the file asks for it and they are not there already.
  void add_special_ids(std::vector<int32_t>& ids) const;

  /// Text of the ids; bytes that form no UTF-8 become U+FFFD. Throws Error(usage) for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, ShowControl show_control = ShowControl::yes) const;

  /// The bytes of one token (possibly part of a UTF-8 sequence); empty for unused ids. Throws Error(usage) for an id
  /// outside the vocabulary. Valid as long as the tokenizer.
  std::string_view piece(int32_t id) const;

  /// True for control and unknown tokens. False outside the vocabulary.
  bool is_control(int32_t id) const;

  /// True when generation ends at this id.
  bool is_eog(int32_t id) const { return eog_ids_.count(id) != 0; }
  const std::set<int32_t>& eog_ids() const { return eog_ids_; }

  /// The id of the control or user-defined token with exactly this text, or else of the normal token with these bytes.
  std::optional<int32_t> token_id(std::string_view text) const;

  int32_t n_vocab() const { return static_cast<int32_t>(types_.size()); }
  const SpecialIds& special() const { return special_; }
  std::optional<int32_t> bos() const { return special_.bos; }
  std::optional<int32_t> eos() const { return special_.eos; }
  std::optional<int32_t> mask() const { return special_.mask; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }

 private:
  void read_pieces(const TokenizerData& data);
  void read_merges(const TokenizerData& data);
  void index_pieces();
  void collect_eog_ids();
  void check_id(int32_t id) const;
  int32_t find_piece(std::string_view bytes) const;
  void encode_valid(std::string_view text, std::span<const TextRange> control_ranges, std::vector<int32_t>& ids) const;
  void encode_plain(std::string_view text, std::string& buffer, std::vector<int32_t>& ids) const;

  PretokenizerKind kind_;
  bool nfc_;
  bool ignore_merges_;
  bool add_bos_;
  bool add_eos_;
  SpecialIds special_;
  std::vector<TokenType> types_;   // [n_vocab]
  std::string bytes_;              // the pieces, one behind the other
  std::vector<uint32_t> offsets_;  // [n_vocab + 1] into bytes_
  std::vector<int32_t> slots_;     // hash table of ids by bytes, -1: free; size a power of two
  Bpe bpe_;
  AddedTokens added_;
  std::set<int32_t> eog_ids_;
};

}  // namespace onebit
