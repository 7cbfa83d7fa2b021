// Two ways to the same result: short pieces scan for the lowest rank, long ones keep the candidates in a heap.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"

namespace onebit {

namespace {

/// Pieces up to this many bytes are merged by scanning (measured: the heap pays from about 60).
constexpr size_t kShortPiece = 48;

}  // namespace

void Bpe::reserve(size_t n) {
  CHECK(n_merges_ == 0);
  merges_.assign(std::bit_ceil(2 * n + 1), Merge{});  // at most half full: short probes
}

/// The slot that holds the pair, or the free one where it would go.
size_t Bpe::slot(int32_t left, int32_t right) const {
  const size_t mask = merges_.size() - 1;
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  const uint64_t hash = key * 0x9E3779B97F4A7C15u;
  for (size_t i = (hash ^ hash >> 32) & mask;; i = (i + 1) & mask) {
    const Merge& m = merges_[i];
    if (m.left == kNone || (m.left == left && m.right == right)) return i;
  }
}

void Bpe::add_merge(int32_t left, int32_t right, int32_t result) {
  CHECK(2 * (size_t{n_merges_} + 1) <= merges_.size());
  Merge& m = merges_[slot(left, right)];
  const uint32_t rank = n_merges_++;
  if (m.left == kNone) m = {left, right, rank, result};
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShortPiece) {
    int32_t symbols[kShortPiece];
    size_t n = 0;
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id != kNone) symbols[n++] = id;
    }
    merge_short(symbols, n, ids);
    return;
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id != kNone) symbols.push_back(id);
  }
  merge_long(symbols, ids);
}

void Bpe::merge_short(int32_t* symbols, size_t n, std::vector<int32_t>& ids) const {
  Merge pairs[kShortPiece];  // pairs[i]: the merge of symbols i and i + 1
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].result;
    std::copy(symbols + best + 2, symbols + n, symbols + best + 1);
    if (best + 2 < n) std::copy(pairs + best + 2, pairs + n - 1, pairs + best + 1);
    --n;
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) pairs[best] = find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + n);
}

void Bpe::merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  // A list of symbols; one that was merged into its left neighbour has id kNone.
  struct Node {
    int32_t id;
    uint32_t rank;  // of the merge with the next node
    uint32_t previous;
    uint32_t next;
  };
  const uint32_t n = static_cast<uint32_t>(symbols.size());
  std::vector<Node> nodes(n);
  std::vector<uint64_t> heap;  // rank << 32 | node, lowest first; entries whose node has changed are skipped
  const auto update = [&](uint32_t i) {
    Node& node = nodes[i];
    node.rank = node.next < n ? find(node.id, nodes[node.next].id).rank : kNoRank;
    if (node.rank == kNoRank) return;
    heap.push_back(static_cast<uint64_t>(node.rank) << 32 | i);
  };
  for (uint32_t i = 0; i < n; ++i) nodes[i] = {symbols[i], kNoRank, i - 1, i + 1};
  for (uint32_t i = 0; i < n; ++i) update(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  const auto update_in_heap = [&](uint32_t i) {
    const size_t before = heap.size();
    update(i);
    if (heap.size() != before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint32_t i = static_cast<uint32_t>(heap.back());
    const uint32_t rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (nodes[i].id == kNone || nodes[i].rank != rank) continue;
    const uint32_t right = nodes[i].next;
    nodes[i].id = find(nodes[i].id, nodes[right].id).result;
    nodes[right].id = kNone;
    nodes[i].next = nodes[right].next;
    if (nodes[i].next < n) nodes[nodes[i].next].previous = i;
    update_in_heap(i);
    if (i > 0) update_in_heap(nodes[i].previous);
  }
  for (uint32_t i = 0; i < n; i = nodes[i].next) ids.push_back(nodes[i].id);
}

}  // namespace onebit
