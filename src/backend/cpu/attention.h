// How attention is cut into pieces, and what a thread needs for one (steps_attention.cpp).
#pragma once

#include <algorithm>
#include <limits>

#include "backend/cpu/step.h"

namespace onebit::cpu {

constexpr int64_t kQueries = 192;        // queries stacked in a piece, at least those of one row
constexpr int64_t kSegmentPages = 16;    // pages of a segment, counted from the sequence's start
constexpr int64_t kSharedSegments = 64;  // results of segments that are kept for merging, times the number of threads
constexpr int64_t kSoftmaxUnit = 4;      // queries that the softmax takes at a time
constexpr float kNothing = -std::numeric_limits<float>::infinity();

inline int64_t rows_per_piece(const AttentionParams& params) {
  return std::max<int64_t>(1, kQueries * params.n_head_kv / params.n_head);
}
inline int64_t queries_per_piece(const AttentionParams& params) {
  return rows_per_piece(params) * (params.n_head / params.n_head_kv);
}
/// With those that the softmax may take past the last query.
inline int64_t query_places(const AttentionParams& params) { return queries_per_piece(params) + kSoftmaxUnit - 1; }

/// Softmax attention of some queries over some positions, not yet divided by the sums.
struct Sums {
  float* o = nullptr;                     // [queries, d_head]
  float *peak = nullptr, *sum = nullptr;  // [queries]: largest score, sum of exp(score - peak)

  static int64_t floats(const AttentionParams& params) { return query_places(params) * (params.d_head + 2); }
  void copy_to(const Sums& other, int64_t n, int64_t d_head) const {
    std::copy_n(o, n * d_head, other.o);
    std::copy_n(peak, n, other.peak);
    std::copy_n(sum, n, other.sum);
  }
  Sums(const AttentionParams& params, float* memory) {
    const int64_t n = query_places(params);
    o = memory;
    peak = o + n * params.d_head;
    sum = peak + n;
  }
};

/// A thread's scratch.
struct Buffers {
  float *keys, *values;  // one page in f32: [d_head, kPageTokens], [kPageTokens, d_head]
  float* scores;         // [queries, kPageTokens]
  float* q;              // [queries, d_head]
  Sums segment, total;
  float* fade;     // by query
  uint64_t* seen;  // by query: positions of a page, lowest bit first

  static int64_t floats(const AttentionParams& params) {
    const int64_t n = query_places(params), d = params.d_head;
    return (2 * kPageTokens + n) * d + n * kPageTokens + 2 * Sums::floats(params) + 3 * n + 1;
  }
  Buffers(const AttentionParams& params, float* memory)
      : keys(memory),
        values(keys + kPageTokens * params.d_head),
        scores(values + kPageTokens * params.d_head),
        q(scores + query_places(params) * kPageTokens),
        segment(params, q + query_places(params) * params.d_head),
        total(params, segment.o + Sums::floats(params)) {
    fade = total.o + Sums::floats(params);
    float* next = fade + query_places(params);
    seen = reinterpret_cast<uint64_t*>(next + (next - memory) % 2);
  }
};

/// Query rows of one sequence (rows of the value q: token rows or output rows) with one key head.
struct Piece {
  const Sequence* sequence = nullptr;
  int64_t head_kv = 0;
  Range rows;
  Range pages;         // cached pages that some of the rows see
  bool block = false;  // and the sequence's own rows

  /// Segments that hold the pages, and one more for the block.
  int64_t n_segment() const {
    const Range segments = cached_segments();
    return segments.size() + (block ? 1 : 0);
  }
  Range cached_segments() const {
    if (pages.size() == 0) return {};
    return {pages.begin / kSegmentPages, (pages.end - 1) / kSegmentPages + 1};
  }
  /// The pages of the i-th segment; none for the block's.
  Range segment_pages(int64_t i) const {
    const int64_t first = (cached_segments().begin + i) * kSegmentPages;
    return {std::max(pages.begin, first), std::min(pages.end, first + kSegmentPages)};
  }
};

/// The position of a query row.
inline int64_t position(const Worker& worker, const Operand& q, int64_t row) {
  return worker.row(worker.token(q, row)).pos;
}

/// A matrix of up to 64 keys and values in memory.
struct Page {
  const void *keys, *values;
  int64_t value_row;  // elements between values
  int64_t pos;        // of the first
  int64_t n;          // positions in use
  CacheType type;
  // The following page, to be fetched while this one is worked on: with few queries, memory is what takes the time.
  const uint8_t *next_keys = nullptr, *next_values = nullptr;
};

/// The pieces of a batch, numbered; threads may share their segments.
class Pieces {
 public:
  Pieces(const CpuStep& step, const Worker& worker)
      : params_(step.as<AttentionParams>()), block_(step.op == Op::block_attention), q_(step.in[0]), worker_(worker) {
    for (const Sequence& sequence : worker.batch().sequences) n_ += n_blocks(query_rows(sequence)) * params_.n_head_kv;
    if (worker.n_thread() == 1 || n_ >= 4 * worker.n_thread()) return;
    int64_t most = 1;
    for (int64_t i = 0; i < n_; ++i) most = std::max(most, piece(i).n_segment());
    if (n_ * most <= most_shared(worker.n_thread())) n_shared_ = most;
  }

  int64_t n() const { return n_; }
  /// Segments of a piece that threads share, at most (some pieces have fewer); 1: pieces are not shared.
  int64_t n_shared() const { return n_shared_; }
  static int64_t most_shared(int n_thread) { return kSharedSegments * n_thread; }

  /// Piece i; the last blocks of a sequence come first, because they see most.
  Piece piece(int64_t i) const {
    Piece piece;
    for (const Sequence& sequence : worker_.batch().sequences) {
      const Range rows = query_rows(sequence);
      const int64_t n = n_blocks(rows) * params_.n_head_kv;
      if (i < n) {
        const int64_t from = rows.begin + (n_blocks(rows) - 1 - i / params_.n_head_kv) * rows_per_piece(params_);
        piece.sequence = &sequence;
        piece.head_kv = i % params_.n_head_kv;
        piece.rows = {from, std::min(from + rows_per_piece(params_), rows.end)};
        piece.pages = pages(sequence, piece.rows);
        piece.block = block_;
        break;
      }
      i -= n;
    }
    return piece;
  }

 private:
  /// The rows of q that belong to a sequence.
  Range query_rows(const Sequence& sequence) const {
    const int32_t begin = sequence.row, end = sequence.row + sequence.n_tok;
    if (q_.info.rows == Rows::tokens) return {begin, end};
    const auto outputs = worker_.batch().outputs;
    return {std::lower_bound(outputs.begin(), outputs.end(), begin) - outputs.begin(),
            std::lower_bound(outputs.begin(), outputs.end(), end) - outputs.begin()};
  }
  int64_t n_blocks(const Range& rows) const {
    return (rows.size() + rows_per_piece(params_) - 1) / rows_per_piece(params_);
  }
  /// Cached pages that some of the rows see; missing ones at the front are left out.
  Range pages(const Sequence& sequence, const Range& rows) const {
    const int64_t first_pos = position(worker_, q_, rows.begin), last_pos = position(worker_, q_, rows.end - 1);
    const int64_t cached = block_ ? sequence.pos : last_pos + 1, window = params_.window;
    int64_t first = window > 0 ? std::max<int64_t>(0, first_pos - window + 1) / kPageTokens : 0;
    const int64_t last = (cached + kPageTokens - 1) / kPageTokens;
    while (first < last && sequence.pages[static_cast<size_t>(first)] < 0) ++first;
    return {std::min(first, last), last};
  }

  const AttentionParams& params_;
  bool block_;
  const Operand& q_;
  const Worker& worker_;
  int64_t n_ = 0, n_shared_ = 1;
};

}  // namespace onebit::cpu
