// The order of encoding: added tokens are cut out of the raw text, what lies between them is brought into NFC, cut into
// pieces by the pre-tokenizer, and each piece is merged.
#include "text/tokenizer.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/error.h"
#include "gguf/file.h"
#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace onebit {

namespace {

/// Longer ones would make the search for added tokens slow; the longest in published vocabularies have about 50 bytes.
constexpr size_t kMaxAddedBytes = 1024;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

/// Tokens that end a generation wherever they are control or user-defined tokens.
constexpr std::string_view kEogTexts[] = {
    "<|im_end|>",    "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",   "<|end_of_text|>",   "</s>",      "<|end|>",
    "<|return|>",    "<|call|>",      "<|flush|>",  "<|calls|>",    "<end_of_turn>",     "<EOT>",     "_<EOT>",
    "[EOT]",         "[EOS]",         "<eos>",      "<turn|>",      "<|fim_pad|>",       "<fim-pad>", "<fim_pad>",
    "<|repo_name|>", "<|fim_repo|>",  "<reponame>", "<|file_sep|>", "<end_of_utterance>"};

bool is_added(TokenType type) {
  return type == TokenType::control || type == TokenType::unknown || type == TokenType::user_defined;
}

/// "<0x0A>" is the byte 0A.
std::optional<char> byte_token_value(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  if (digit(text[3]) < 0 || digit(text[4]) < 0) return std::nullopt;
  return static_cast<char>(digit(text[3]) * 16 + digit(text[4]));
}

void check_special_id(const char* name, const std::optional<int32_t>& id, size_t n_vocab) {
  if (id && (*id < 0 || static_cast<size_t>(*id) >= n_vocab)) {
    refuse("tokenizer: {} token id {} is outside the vocabulary of {} tokens", name, *id, n_vocab);
  }
}

[[noreturn]] void refuse_merge(size_t rank, std::string_view merge) {
  refuse(
      "tokenizer: merge {} (\"{}\") is not two tokens of the vocabulary that make a third, with a space between them",
      rank, printable(merge));
}

}  // namespace

Tokenizer::Tokenizer(const TokenizerData& data)
    : kind_(find_pretokenizer(data.pre).kind),
      nfc_(data.nfc),
      ignore_merges_(data.ignore_merges),
      add_bos_(data.add_bos),
      add_eos_(data.add_eos),
      special_(data.special),
      types_(data.types) {
  if (data.tokens.empty() || data.tokens.size() > INT32_MAX) {
    refuse("tokenizer: a vocabulary of {} tokens can't be used", data.tokens.size());
  }
  if (data.types.size() != data.tokens.size()) {
    refuse("tokenizer: {} tokens but {} token types", data.tokens.size(), data.types.size());
  }
  const SpecialIds& s = special_;
  const std::pair<const char*, const std::optional<int32_t>&> ids[] = {
      {"bos", s.bos},         {"eos", s.eos},         {"eot", s.eot},         {"eom", s.eom},
      {"unknown", s.unk},     {"separator", s.sep},   {"padding", s.pad},     {"mask", s.mask},
      {"fim_pre", s.fim_pre}, {"fim_suf", s.fim_suf}, {"fim_mid", s.fim_mid}, {"fim_pad", s.fim_pad},
      {"fim_rep", s.fim_rep}, {"fim_sep", s.fim_sep}};
  for (const auto& [name, id] : ids) check_special_id(name, id, types_.size());
  read_pieces(data);
  index_pieces();
  read_merges(data);
  collect_eog_ids();
}

void Tokenizer::read_pieces(const TokenizerData& data) {
  offsets_.reserve(types_.size() + 1);
  offsets_.push_back(0);
  for (size_t id = 0; id < types_.size(); ++id) {
    const std::string& text = data.tokens[id];
    const TokenType type = types_[id];
    if (is_added(type)) {
      if (text.size() > kMaxAddedBytes) {
        refuse("tokenizer: added token {} has {} bytes, the limit is {}", id, text.size(), kMaxAddedBytes);
      }
      added_.add(text, static_cast<int32_t>(id), type != TokenType::user_defined);
      bytes_ += text;
    } else if (const auto byte = type == TokenType::byte ? byte_token_value(text) : std::nullopt) {
      bytes_ += *byte;
    } else if (type != TokenType::unused && !append_alphabet_bytes(bytes_, text)) {
      bytes_ += text;
    }
    if (bytes_.size() > UINT32_MAX) refuse("tokenizer: the tokens have more than 4 GiB of text");
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  added_.build();
}

/// Normal tokens come first, so that of two tokens with the same bytes the normal one is found.
void Tokenizer::index_pieces() {
  slots_.assign(std::bit_ceil(2 * types_.size()), -1);
  const auto add = [&](size_t id) {
    const std::string_view bytes = piece(static_cast<int32_t>(id));
    if (bytes.empty()) return;
    size_t i = std::hash<std::string_view>()(bytes) & (slots_.size() - 1);
    while (slots_[i] >= 0) {
      if (piece(slots_[i]) == bytes) return;
      i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i] = static_cast<int32_t>(id);
  };
  for (size_t id = 0; id < types_.size(); ++id) {
    if (!is_added(types_[id])) add(id);
  }
  for (size_t id = 0; id < types_.size(); ++id) {
    if (is_added(types_[id])) add(id);
  }
}

/// The token with these bytes, -1: none.
int32_t Tokenizer::find_piece(std::string_view bytes) const {
  size_t i = std::hash<std::string_view>()(bytes) & (slots_.size() - 1);
  while (slots_[i] >= 0) {
    const size_t id = static_cast<size_t>(slots_[i]);
    if (std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]) == bytes) return slots_[i];
    i = (i + 1) & (slots_.size() - 1);
  }
  return -1;
}

void Tokenizer::read_merges(const TokenizerData& data) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const int32_t id = find_piece({&c, 1});
    if (id >= 0) bpe_.set_byte(static_cast<uint8_t>(byte), id);
  }
  bpe_.reserve(data.merges.size());
  std::string bytes;
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const std::string& merge = data.merges[rank];
    const size_t space = merge.find(' ', 1);
    bytes.clear();
    const std::string_view text = merge;
    if (space == std::string::npos || !append_alphabet_bytes(bytes, text.substr(0, space))) refuse_merge(rank, merge);
    const size_t left_size = bytes.size();
    if (!append_alphabet_bytes(bytes, text.substr(space + 1)) || bytes.size() == left_size) refuse_merge(rank, merge);
    const std::string_view all = bytes;
    const int32_t left = find_piece(all.substr(0, left_size));
    const int32_t right = find_piece(all.substr(left_size));
    const int32_t result = find_piece(all);
    if (left < 0 || right < 0 || result < 0) refuse_merge(rank, merge);
    bpe_.add_merge(left, right, result);
  }
}

void Tokenizer::collect_eog_ids() {
  for (const std::string_view text : kEogTexts) {
    if (const auto id = added_.id(text)) eog_ids_.insert(*id);
  }
  const SpecialIds& s = special_;
  for (const std::optional<int32_t>& id : {s.eos, s.eot, s.eom, s.fim_pad, s.fim_rep, s.fim_sep}) {
    if (id) eog_ids_.insert(*id);
  }
}

void Tokenizer::check_id(int32_t id) const {
  if (id < 0 || id >= n_vocab()) {
    fail(ErrorKind::usage, "token id {} is outside the vocabulary of {} tokens", id, n_vocab());
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, ParseSpecial parse_special) const {
  const TextSegment segment{text, parse_special};
  return encode(std::span(&segment, 1));
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextSegment> segments) const {
  size_t n_bytes = 0;
  for (const TextSegment& s : segments) n_bytes += s.text.size();
  if (n_bytes > kMaxTextBytes) {
    fail(ErrorKind::usage, "text of {} bytes is too long to tokenize, the limit is {}", n_bytes, kMaxTextBytes);
  }
  std::string joined;
  std::vector<TextRange> control_ranges;
  const bool usable_as_is = segments.size() == 1 && is_valid_utf8(segments[0].text);
  for (const TextSegment& s : segments) {
    const size_t begin = joined.size();
    if (!usable_as_is) append_valid_utf8(joined, s.text);
    const size_t end = usable_as_is ? s.text.size() : joined.size();
    if (s.parse_special == ParseSpecial::no) continue;
    if (!control_ranges.empty() && control_ranges.back().end == begin) {
      control_ranges.back().end = end;
    } else {
      control_ranges.push_back({begin, end});
    }
  }
  std::vector<int32_t> ids;
  ids.reserve(n_bytes / 3);
  encode_valid(usable_as_is ? segments[0].text : std::string_view(joined), control_ranges, ids);
  return ids;
}

void Tokenizer::encode_valid(std::string_view text, std::span<const TextRange> control_ranges,
                             std::vector<int32_t>& ids) const {
  std::string buffer;
  size_t pos = 0;
  while (const auto match = added_.find(text, pos, control_ranges)) {
    encode_plain(text.substr(pos, match->pos - pos), buffer, ids);
    ids.push_back(match->id);
    pos = match->pos + match->size;
  }
  encode_plain(text.substr(pos), buffer, ids);
}

/// Text without added tokens.
void Tokenizer::encode_plain(std::string_view text, std::string& buffer, std::vector<int32_t>& ids) const {
  if (nfc_) text = to_nfc(text, buffer);
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = piece_end(kind_, text, pos);
    const std::string_view bytes = text.substr(pos, end - pos);
    pos = end;
    if (ignore_merges_) {
      const int32_t id = find_piece(bytes);
      if (id >= 0 && !is_added(types_[static_cast<size_t>(id)])) {
        ids.push_back(id);
        continue;
      }
    }
    bpe_.encode(bytes, ids);
  }
}

void Tokenizer::add_special_ids(std::vector<int32_t>& ids) const {
  if (add_bos_ && special_.bos && (ids.empty() || ids.front() != *special_.bos)) {
    ids.insert(ids.begin(), *special_.bos);
  }
  if (add_eos_ && special_.eos && (ids.empty() || ids.back() != *special_.eos)) ids.push_back(*special_.eos);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, ShowControl show_control) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string_view text = piece(id);
    if (show_control == ShowControl::yes || !is_control(id)) bytes += text;
  }
  if (is_valid_utf8(bytes)) return bytes;
  std::string text;
  append_valid_utf8(text, bytes);
  return text;
}

std::string_view Tokenizer::piece(int32_t id) const {
  check_id(id);
  const size_t i = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

bool Tokenizer::is_control(int32_t id) const {
  if (id < 0 || id >= n_vocab()) return false;
  const TokenType type = types_[static_cast<size_t>(id)];
  return type == TokenType::control || type == TokenType::unknown;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view text) const {
  if (const auto id = added_.id(text)) return id;
  const int32_t id = find_piece(text);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

}  // namespace onebit
