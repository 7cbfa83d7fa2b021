// Tokens that are found in the text itself, before it is cut and merged: control and user-defined ones. Owns their
// texts; in comes a text, out go the matches from left to right, the longest at each place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onebit {

/// A stretch of a text, in bytes.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

class AddedTokens {
 public:
  /// `control`: matched only where the text allows control tokens. Empty texts are ignored.
  void add(std::string text, int32_t id, bool control);
  /// Must follow the last add.
  void build();

  struct Match {
    size_t pos = 0;
    size_t size = 0;
    int32_t id = 0;
  };
  /// The first match at or after `from`: leftmost, then longest. A control token counts when it lies within one of
  /// `control_ranges` (ascending, apart). Nothing: no match.
  std::optional<Match> find(std::string_view text, size_t from, std::span<const TextRange> control_ranges) const;

  /// The id of the token with exactly this text.
  std::optional<int32_t> id(std::string_view text) const;

 private:
  struct Entry {
    std::string text;
    int32_t id;
    bool control;
  };
  std::optional<Match> match_at(std::string_view text, size_t pos, std::span<const TextRange> control_ranges) const;

  std::vector<Entry> entries_;              // by text, each text once
  std::array<uint32_t, 257> first_byte_{};  // entries whose first byte is b: [first_byte_[b], first_byte_[b + 1])
};

}  // namespace onebit
