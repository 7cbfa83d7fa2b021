// The cache of keys and values, and softmax attention over it.
//
// Work is cut into pieces of (sequence, key head, block of rows): all query heads that share the key head and some tens
// of rows are stacked into one matrix of queries, so that a page of keys and values is read once for all of them. A
// piece walks the pages with a running maximum and sum per query (online softmax), one page of 64 positions at a time:
// scores = Q K^T, probabilities, then O += P V, both products by the gemm kernels.
//
// Pages are taken in segments of 1024 positions whose results are merged in order. Segments are what threads share when
// there are fewer pieces than threads could use (decoding with few key heads). They are there even when they are not
// shared, so that a row's result is the same to the last bit whatever else is in the batch: decoded or verified alone,
// among other rows, on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/step.h"

namespace onebit::cpu {
namespace {

constexpr int64_t kQueries = 192;        // queries stacked in a piece, at least those of one row
constexpr int64_t kWidenFrom = 13;       // from so many queries on, a page is widened to f32 once instead of per tile
constexpr int64_t kSegmentPages = 16;    // pages of a segment, counted from the sequence's start
constexpr int64_t kSharedSegments = 64;  // results of segments that are kept for merging, times the number of threads
constexpr int64_t kDepth = 16;           // columns or positions between fetches of the next page
constexpr float kNothing = -std::numeric_limits<float>::infinity();

int64_t rows_per_piece(const AttentionParams& params) {
  return std::max<int64_t>(1, kQueries * params.n_head_kv / params.n_head);
}
int64_t queries_per_piece(const AttentionParams& params) {
  return rows_per_piece(params) * (params.n_head / params.n_head_kv);
}

/// Softmax attention of some queries over some positions, not yet divided by the sums.
struct Sums {
  float* o = nullptr;                     // [queries, d_head]
  float *peak = nullptr, *sum = nullptr;  // [queries]: largest score, sum of exp(score - peak)

  static int64_t floats(const AttentionParams& params) { return queries_per_piece(params) * (params.d_head + 2); }
  void copy_to(const Sums& other, int64_t n, int64_t d_head) const {
    std::copy_n(o, n * d_head, other.o);
    std::copy_n(peak, n, other.peak);
    std::copy_n(sum, n, other.sum);
  }
  Sums(const AttentionParams& params, float* memory) {
    const int64_t n = queries_per_piece(params);
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

  static int64_t floats(const AttentionParams& params) {
    return (2 * kPageTokens + queries_per_piece(params)) * params.d_head + queries_per_piece(params) * kPageTokens +
           2 * Sums::floats(params);
  }
  Buffers(const AttentionParams& params, float* memory)
      : keys(memory),
        values(keys + kPageTokens * params.d_head),
        scores(values + kPageTokens * params.d_head),
        q(scores + queries_per_piece(params) * kPageTokens),
        segment(params, q + queries_per_piece(params) * params.d_head),
        total(params, segment.o + Sums::floats(params)) {}
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
int64_t position(const Worker& worker, const Operand& q, int64_t row) { return worker.row(worker.token(q, row)).pos; }

/// A matrix of up to 64 keys and values in memory.
struct Page {
  const void *keys, *values;
  int64_t value_row;  // elements between values
  int64_t pos;        // of the first
  int64_t n;          // positions in use
  bool f16;
  // The following page, to be fetched while this one is worked on: with few queries, memory is what takes the time.
  const uint8_t *next_keys = nullptr, *next_values = nullptr;
};

/// Brings memory closer.
void fetch(const uint8_t* p, int64_t n_byte) {
  for (int64_t i = 0; i < n_byte; i += 64) __builtin_prefetch(p + i, 0, 2);
}

class Attention {
 public:
  Attention(const CpuStep& step, Worker& worker)
      : step_(step),
        worker_(worker),
        kernels_(worker.kernels()),
        params_(step.as<AttentionParams>()),
        memory_(step.memory<KvMemory>()),
        group_(params_.n_head / params_.n_head_kv),
        buffers_(params_, worker.scratch<float>()) {}

  /// Takes the piece's queries; nothing has been seen yet.
  void begin(const Piece& piece);
  /// Sums over one segment, left in the buffers.
  const Sums& segment(const Piece& piece, int64_t i);
  /// Adds a segment's sums to the total.
  void merge(const Piece& piece, const Sums& sums);
  /// Writes the total, divided by its sums, to the output rows.
  void finish(const Piece& piece);

  int64_t n_query(const Piece& piece) const { return piece.rows.size() * group_; }

 private:
  bool with_block() const { return step_.op == Op::block_attention; }
  /// Positions [begin, end) that a query row of the sequence sees.
  Range visible(const Sequence& sequence, int64_t row) const;
  void clear(const Piece& piece, const Sums& sums);
  void add_page(const Piece& piece, const Page& page);
  int64_t first_seeing(const Piece& piece, const Page& page) const;
  void soften(const Piece& piece, const Page& page, int64_t first);
  void add_cached(const Piece& piece, int64_t page);
  void add_own_rows(const Piece& piece);
  Page widened(const Page& page);

  const CpuStep& step_;
  Worker& worker_;
  const Kernels& kernels_;
  const AttentionParams& params_;
  const KvMemory& memory_;
  int64_t group_;
  Buffers buffers_;
};

Range Attention::visible(const Sequence& sequence, int64_t row) const {
  const int64_t pos = position(worker_, step_.in[0], row), window = params_.window;
  Range seen{window > 0 ? std::max<int64_t>(0, pos - window + 1) : 0, pos + 1};
  if (with_block() && !params_.causal) {
    seen.end = sequence.pos + sequence.n_tok;
    if (window > 0) seen.end = std::min(seen.end, pos + window);
  }
  return seen;
}

void Attention::clear(const Piece& piece, const Sums& sums) {
  const int64_t n = n_query(piece);
  std::fill_n(sums.o, n * params_.d_head, 0.0f);
  std::fill_n(sums.peak, n, kNothing);
  std::fill_n(sums.sum, n, 0.0f);
}

void Attention::begin(const Piece& piece) {
  const int64_t width = group_ * params_.d_head;  // the heads of a group are neighbours
  for (int64_t r = 0; r < piece.rows.size(); ++r) {
    const float* q = step_.in[0].f32(piece.rows.begin + r) + piece.head_kv * width;
    kernels_.scale(q, params_.scale, width, buffers_.q + r * width);
  }
  clear(piece, buffers_.total);
}

/// Scores of a page -> probabilities against the running maximum; earlier outputs and sums are rescaled to it.
void Attention::soften(const Piece& piece, const Page& page, int64_t first) {
  const int64_t d = params_.d_head;
  const Sums& sums = buffers_.segment;
  for (int64_t i = first; i < n_query(piece); ++i) {
    const Range seen = visible(*piece.sequence, piece.rows.begin + i / group_);
    const int64_t begin = std::clamp<int64_t>(seen.begin - page.pos, 0, page.n);
    const int64_t end = std::clamp<int64_t>(seen.end - page.pos, begin, page.n);
    float* scores = buffers_.scores + i * kPageTokens;
    std::fill_n(scores, begin, 0.0f);
    std::fill_n(scores + end, page.n - end, 0.0f);
    const float peak = std::max(sums.peak[i], kernels_.max(scores + begin, end - begin));
    if (peak == kNothing) {  // nothing seen so far
      std::fill_n(scores, page.n, 0.0f);
      continue;
    }
    const float fade = std::exp(sums.peak[i] - peak);
    if (fade != 1) kernels_.scale(sums.o + i * d, fade, d, sums.o + i * d);
    sums.sum[i] = sums.sum[i] * fade + kernels_.exp_sum(scores + begin, peak, end - begin, scores + begin);
    sums.peak[i] = peak;
  }
}

Page Attention::widened(const Page& page) {
  const int64_t d = params_.d_head;
  for (int64_t i = 0; i < d; ++i) {
    kernels_.from_f16(static_cast<const uint16_t*>(page.keys) + i * kPageTokens, page.n,
                      buffers_.keys + i * kPageTokens);
  }
  kernels_.from_f16(static_cast<const uint16_t*>(page.values), page.n * d, buffers_.values);
  return {buffers_.keys, buffers_.values, d, page.pos, page.n, false};
}

void Attention::add_page(const Piece& piece, const Page& page) {
  if (page.f16 && n_query(piece) >= kWidenFrom) return add_page(piece, widened(page));
  const GemmFn gemm = page.f16 ? kernels_.gemm_f16 : kernels_.gemm_f32;
  const int64_t first = first_seeing(piece, page), n = n_query(piece) - first, d = params_.d_head;
  float *scores = buffers_.scores + first * kPageTokens, *o = buffers_.segment.o + first * d;
  const float* q = buffers_.q + first * d;
  if (!page.next_keys) {
    gemm(q, d, 1, page.keys, kPageTokens, scores, kPageTokens, n, page.n, d, false);
    soften(piece, page, first);
    gemm(scores, kPageTokens, 1, page.values, page.value_row, o, d, n, d, page.n, true);
    return;
  }
  const auto *keys = static_cast<const uint16_t*>(page.keys), *values = static_cast<const uint16_t*>(page.values);
  for (int64_t i = 0; i < d; i += kDepth) {
    const int64_t depth = std::min(kDepth, d - i);
    fetch(page.next_keys + i * kPageTokens * 2, depth * kPageTokens * 2);
    gemm(q + i, d, 1, keys + i * kPageTokens, kPageTokens, scores, kPageTokens, n, page.n, depth, i > 0);
  }
  soften(piece, page, first);
  for (int64_t i = 0; i < page.n; i += kDepth) {
    const int64_t depth = std::min(kDepth, page.n - i);
    fetch(page.next_values + i * d * 2, depth * d * 2);
    gemm(scores + i, kPageTokens, 1, values + i * d, page.value_row, o, d, n, d, depth, true);
  }
}

/// The first query that may see something of the page: rows before its first position don't, unless rows of a block see
/// each other.
int64_t Attention::first_seeing(const Piece& piece, const Page& page) const {
  if (with_block() && !params_.causal) return 0;
  int64_t row = piece.rows.begin;
  while (row < piece.rows.end && position(worker_, step_.in[0], row) < page.pos) ++row;
  return (row - piece.rows.begin) * group_;
}

void Attention::add_cached(const Piece& piece, int64_t page) {
  const Sequence& sequence = *piece.sequence;
  const int64_t cached = with_block() ? sequence.pos : position(worker_, step_.in[0], piece.rows.end - 1) + 1;
  const int64_t id = sequence.pages[static_cast<size_t>(page)], pos = page * kPageTokens;
  Page shape{memory_.key_page(id, piece.head_kv), memory_.value_page(id, piece.head_kv), params_.d_head, pos,
             std::min(kPageTokens, cached - pos), memory_.type == CacheType::f16};
  if (shape.f16 && page + 1 < piece.pages.end && n_query(piece) < kWidenFrom) {
    const int64_t next = std::max(sequence.pages[static_cast<size_t>(page) + 1], 0);
    shape.next_keys = memory_.key_page(next, piece.head_kv);
    shape.next_values = memory_.value_page(next, piece.head_kv);
  }
  add_page(piece, shape);
}

/// The keys and values of the block itself, 64 rows at a time; keys are transposed like those of a page.
void Attention::add_own_rows(const Piece& piece) {
  const Sequence& sequence = *piece.sequence;
  const int64_t d = params_.d_head, width = params_.n_head_kv * d;
  for (int64_t first = 0; first < sequence.n_tok; first += kPageTokens) {
    const int64_t n = std::min<int64_t>(kPageTokens, sequence.n_tok - first);
    for (int64_t j = 0; j < n; ++j) {
      const float* key = step_.in[1].f32(sequence.row + first + j) + piece.head_kv * d;
      for (int64_t i = 0; i < d; ++i) buffers_.keys[i * kPageTokens + j] = key[i];
    }
    const float* values = step_.in[2].f32(sequence.row + first) + piece.head_kv * d;
    add_page(piece, {buffers_.keys, values, width, sequence.pos + first, n, false});
  }
}

const Sums& Attention::segment(const Piece& piece, int64_t i) {
  clear(piece, buffers_.segment);
  if (i < piece.cached_segments().size()) {
    const Range pages = piece.segment_pages(i);
    for (int64_t page = pages.begin; page < pages.end; ++page) add_cached(piece, page);
  } else {
    add_own_rows(piece);
  }
  return buffers_.segment;
}

void Attention::merge(const Piece& piece, const Sums& sums) {
  const int64_t d = params_.d_head;
  const Sums& total = buffers_.total;
  for (int64_t i = 0; i < n_query(piece); ++i) {
    const float peak = std::max(total.peak[i], sums.peak[i]);
    if (sums.peak[i] == kNothing) continue;
    const float mine = std::exp(total.peak[i] - peak), theirs = std::exp(sums.peak[i] - peak);
    kernels_.scale(total.o + i * d, mine, d, total.o + i * d);
    kernels_.axpy(theirs, sums.o + i * d, d, total.o + i * d);
    total.sum[i] = total.sum[i] * mine + sums.sum[i] * theirs;
    total.peak[i] = peak;
  }
}

void Attention::finish(const Piece& piece) {
  const int64_t d = params_.d_head;
  for (int64_t i = 0; i < n_query(piece); ++i) {
    float* y = step_.out[0].f32(piece.rows.begin + i / group_) + (piece.head_kv * group_ + i % group_) * d;
    kernels_.scale(buffers_.total.o + i * d, 1 / buffers_.total.sum[i], d, y);
  }
}

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

/// Rows of a step that go to one page: consecutive positions of one sequence.
struct PageRows {
  int64_t row, n;    // rows of the values k and v
  int64_t page, at;  // position within the page
};

/// Writes one head of some rows into their page; keys are transposed on the way.
void store_f32(const KvMemory& memory, const CpuStep& step, const PageRows& rows, int64_t head) {
  const int64_t d = memory.d_head;
  auto* keys = reinterpret_cast<float*>(memory.key_page(rows.page, head)) + rows.at;
  auto* values = reinterpret_cast<float*>(memory.value_page(rows.page, head)) + rows.at * d;
  for (int64_t r = 0; r < rows.n; ++r) {
    const float* k = step.in[0].f32(rows.row + r) + head * d;
    for (int64_t i = 0; i < d; ++i) keys[i * kPageTokens + r] = k[i];
    std::copy_n(step.in[1].f32(rows.row + r) + head * d, d, values + r * d);
  }
}
/// `halves`: [rows.n, d_head] scratch.
void store_f16(const KvMemory& memory, const Kernels& kernels, const CpuStep& step, const PageRows& rows, int64_t head,
               uint16_t* halves) {
  const int64_t d = memory.d_head;
  auto* keys = reinterpret_cast<uint16_t*>(memory.key_page(rows.page, head)) + rows.at;
  auto* values = reinterpret_cast<uint16_t*>(memory.value_page(rows.page, head)) + rows.at * d;
  for (int64_t r = 0; r < rows.n; ++r) {
    kernels.to_f16(step.in[0].f32(rows.row + r) + head * d, d, halves + r * d);
    kernels.to_f16(step.in[1].f32(rows.row + r) + head * d, d, values + r * d);
  }
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t r = 0; r < rows.n; ++r) keys[i * kPageTokens + r] = halves[r * d + i];
  }
}

}  // namespace

Needs needs_kv_store(const CpuStep& step, const PlanLimits&, int) {
  return {.thread = kPageTokens * step.memory<KvMemory>().d_head * 2};
}

// Split by heads: rows of one page lie in the same cache lines of its transposed keys.
void run_kv_store(const CpuStep& step, Worker& worker) {
  const auto& memory = step.memory<KvMemory>();
  const Range heads = share(memory.n_head_kv, 1, worker.thread(), worker.n_thread());
  const int64_t n_row = worker.n_row(step.in[0]);
  for (int64_t r = 0; r < n_row;) {
    const int64_t token = worker.token(step.in[0], r), pos = worker.row(token).pos;
    PageRows rows{r, 1, worker.sequence(token).pages[static_cast<size_t>(pos / kPageTokens)], pos % kPageTokens};
    for (; r + rows.n < n_row && rows.at + rows.n < kPageTokens; ++rows.n) {
      const RowInfo& next = worker.row(worker.token(step.in[0], r + rows.n));
      if (next.sequence != worker.row(token).sequence || next.pos != pos + rows.n) break;
    }
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      if (memory.type == CacheType::f32) {
        store_f32(memory, step, rows, h);
      } else {
        store_f16(memory, worker.kernels(), step, rows, h, worker.scratch<uint16_t>());
      }
    }
    r += rows.n;
  }
}

Needs needs_attention(const CpuStep& step, const PlanLimits&, int n_thread) {
  const auto& params = step.as<AttentionParams>();
  return {.thread = Buffers::floats(params) * 4, .shared = Pieces::most_shared(n_thread) * Sums::floats(params) * 4};
}

void run_attention(const CpuStep& step, Worker& worker) {
  const auto& params = step.as<AttentionParams>();
  const Pieces pieces(step, worker);
  Attention attention(step, worker);
  const int64_t n_shared = pieces.n_shared(), n_claim = pieces.n() * n_shared;
  const auto shared = [&](int64_t i) {
    return Sums(params, reinterpret_cast<float*>(step.shared) + i * Sums::floats(params));
  };
  for (int64_t i = step.claims->fetch_add(1); i < n_claim; i = step.claims->fetch_add(1)) {
    const Piece piece = pieces.piece(i / n_shared);
    if (n_shared > 1 && i % n_shared >= piece.n_segment()) continue;
    attention.begin(piece);
    if (n_shared > 1) {
      attention.segment(piece, i % n_shared).copy_to(shared(i), attention.n_query(piece), params.d_head);
      continue;
    }
    for (int64_t s = 0; s < piece.n_segment(); ++s) attention.merge(piece, attention.segment(piece, s));
    attention.finish(piece);
  }
  if (n_shared == 1) return;
  worker.barrier();
  for (int64_t i = worker.thread(); i < pieces.n(); i += worker.n_thread()) {
    const Piece piece = pieces.piece(i);
    attention.begin(piece);
    for (int64_t s = 0; s < piece.n_segment(); ++s) attention.merge(piece, shared(i * n_shared + s));
    attention.finish(piece);
  }
}

}  // namespace onebit::cpu
