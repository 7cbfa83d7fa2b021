// Matching walks down the sorted texts: each further byte narrows the range of entries that start with what was read.
#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

namespace onebit {

namespace {

bool lies_within(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                      [](size_t value, const TextRange& range) { return value < range.begin; });
  return after != ranges.begin() && end <= (after - 1)->end;
}

}  // namespace

void AddedTokens::add(std::string text, int32_t id, bool control) {
  if (!text.empty()) entries_.push_back({std::move(text), id, control});
}

void AddedTokens::build() {
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  const auto same = [](const Entry& a, const Entry& b) { return a.text == b.text; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  first_byte_.fill(0);
  for (const Entry& e : entries_) ++first_byte_[static_cast<uint8_t>(e.text[0]) + 1];
  for (size_t b = 0; b < 256; ++b) first_byte_[b + 1] += first_byte_[b];
}

std::optional<AddedTokens::Match> AddedTokens::match_at(std::string_view text, size_t pos,
                                                        std::span<const TextRange> control_ranges) const {
  const uint8_t first = static_cast<uint8_t>(text[pos]);
  auto begin = entries_.begin() + first_byte_[first];
  auto end = entries_.begin() + first_byte_[first + 1];
  std::optional<Match> best;
  for (size_t size = 1; begin != end; ++size) {
    // All of [begin, end) start with text[pos, pos + size); the one that ends here comes first.
    if (begin->text.size() == size) {
      if (!begin->control || lies_within(control_ranges, pos, pos + size)) best = Match{pos, size, begin->id};
      ++begin;
    }
    if (pos + size >= text.size()) break;
    const uint8_t next = static_cast<uint8_t>(text[pos + size]);
    const auto byte_at = [size](const Entry& e) { return static_cast<uint8_t>(e.text[size]); };
    begin = std::partition_point(begin, end, [&](const Entry& e) { return byte_at(e) < next; });
    end = std::partition_point(begin, end, [&](const Entry& e) { return byte_at(e) == next; });
  }
  return best;
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, size_t from,
                                                    std::span<const TextRange> control_ranges) const {
  for (size_t pos = from; pos < text.size(); ++pos) {
    const uint8_t first = static_cast<uint8_t>(text[pos]);
    if (first_byte_[first] == first_byte_[first + 1]) continue;
    if (const auto match = match_at(text, pos, control_ranges)) return match;
  }
  return std::nullopt;
}

std::optional<int32_t> AddedTokens::id(std::string_view text) const {
  const auto it = std::lower_bound(entries_.begin(), entries_.end(), text,
                                   [](const Entry& e, std::string_view t) { return e.text < t; });
  if (it == entries_.end() || it->text != text) return std::nullopt;
  return it->id;
}

}  // namespace onebit
