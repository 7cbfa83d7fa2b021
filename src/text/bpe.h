// Byte-pair merging of one piece of text. Owns the table of merges and the ids of single bytes; in come the bytes of a
// piece, out go token ids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace onebit {

class Bpe {
 public:
  Bpe() { byte_ids_.fill(kNone); }

  /// Makes room for `n` merges; must come before the first add_merge.
  void reserve(size_t n);
  /// Token of a single byte. A byte without one is left out of the result.
  void set_byte(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }
  /// Tokens `left` and `right` side by side become `result`; earlier merges go first. A repeated pair is ignored.
  void add_merge(int32_t left, int32_t right, int32_t result);

  /// Appends the ids of a piece: merges the pair of lowest rank (leftmost of several) until none is left.
  /// O(n log n) in the length of the piece.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  static constexpr int32_t kNone = -1;
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Merge {
    int32_t left = kNone;
    int32_t right = kNone;
    uint32_t rank = kNoRank;
    int32_t result = kNone;
  };

  size_t slot(int32_t left, int32_t right) const;
  const Merge& find(int32_t left, int32_t right) const { return merges_[slot(left, right)]; }
  void merge_short(int32_t* symbols, size_t n, std::vector<int32_t>& ids) const;
  void merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Merge> merges_ = std::vector<Merge>(1);  // hash table with open addressing, size a power of two
  uint32_t n_merges_ = 0;
};

}  // namespace onebit
