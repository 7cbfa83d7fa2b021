// Softmax attention over the cache of keys and values.
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

#include "backend/cpu/attention.h"

namespace onebit::cpu {
namespace {

constexpr int64_t kWidenFrom = 13;  // from so many queries on, a page is widened to f32 once instead of per tile
constexpr int64_t kDepth = 16;      // columns or positions between fetches of the next page

/// Brings memory closer.
void fetch(const uint8_t* p, int64_t n_byte) {
  for (int64_t i = 0; i < n_byte; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/// Bits [begin, end) of a word.
uint64_t bits(const Range& range) { return range.size() == 0 ? 0 : ~uint64_t{0} >> (64 - range.size()) << range.begin; }

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
  Range seen_of(const Piece& piece, const Page& page, int64_t row) const;
  void soften(const Piece& piece, const Page& page, int64_t first);
  void fade(const Piece& piece, int64_t first);
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

/// The positions of a page that row `row` of the piece sees.
Range Attention::seen_of(const Piece& piece, const Page& page, int64_t row) const {
  const Range seen = visible(*piece.sequence, piece.rows.begin + row);
  const int64_t begin = std::clamp<int64_t>(seen.begin - page.pos, 0, page.n);
  return {begin, std::clamp<int64_t>(seen.end - page.pos, begin, page.n)};
}

/// Brings the sums of outputs to the new peaks.
void Attention::fade(const Piece& piece, int64_t first) {
  const int64_t d = params_.d_head;
  float* o = buffers_.segment.o;
  for (int64_t i = first; i < n_query(piece); ++i) {
    if (buffers_.fade[i] != 1) kernels_.scale(o + i * d, buffers_.fade[i], d, o + i * d);
  }
}

/// Scores of a page -> probabilities against the running maximum.
void Attention::soften(const Piece& piece, const Page& page, int64_t first) {
  const Sums& sums = buffers_.segment;
  for (int64_t row = first / group_; row < piece.rows.size(); ++row) {
    std::fill_n(buffers_.seen + row * group_, group_, bits(seen_of(piece, page, row)));
  }
  const int64_t n = (n_query(piece) - first + kSoftmaxUnit - 1) / kSoftmaxUnit * kSoftmaxUnit;
  for (int64_t i = n_query(piece); i < first + n; ++i) {  // places past the last query see nothing
    buffers_.seen[i] = 0;
    sums.peak[i] = kNothing;
    sums.sum[i] = 0;
  }
  kernels_.soften({.scores = buffers_.scores + first * kPageTokens,
                   .seen = buffers_.seen + first,
                   .peak = sums.peak + first,
                   .sum = sums.sum + first,
                   .fade = buffers_.fade + first},
                  n);
  fade(piece, first);
}

Page Attention::widened(const Page& page) {
  const int64_t d = params_.d_head;
  if (page.type == CacheType::q8_0) {
    const int64_t n_block = d / kBlock;
    const auto *keys = static_cast<const int8_t*>(page.keys), *values = static_cast<const int8_t*>(page.values);
    const auto* key_scales = reinterpret_cast<const uint16_t*>(keys + kPageTokens * d);
    const auto* value_scales = reinterpret_cast<const uint16_t*>(values + kPageTokens * d);
    for (int64_t b = 0; b < n_block; ++b) {
      kernels_.from_q8_columns(keys + b * kBlock * kPageTokens, key_scales + b * kPageTokens, kPageTokens, page.n,
                               buffers_.keys + b * kBlock * kPageTokens);
    }
    kernels_.from_q8_blocks(values, value_scales, page.n * n_block, buffers_.values);
    return {buffers_.keys, buffers_.values, d, page.pos, page.n, CacheType::f32};
  }
  for (int64_t i = 0; i < d; ++i) {
    kernels_.from_f16(static_cast<const uint16_t*>(page.keys) + i * kPageTokens, page.n,
                      buffers_.keys + i * kPageTokens);
  }
  kernels_.from_f16(static_cast<const uint16_t*>(page.values), page.n * d, buffers_.values);
  return {buffers_.keys, buffers_.values, d, page.pos, page.n, CacheType::f32};
}

void Attention::add_page(const Piece& piece, const Page& page) {
  const bool f16 = page.type == CacheType::f16;
  if (page.type == CacheType::q8_0 || (f16 && n_query(piece) >= kWidenFrom)) return add_page(piece, widened(page));
  const GemmFn gemm = f16 ? kernels_.gemm_f16 : kernels_.gemm_f32;
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
  Page shape{memory_.key_page(id, piece.head_kv),
             memory_.value_page(id, piece.head_kv),
             params_.d_head,
             pos,
             std::min(kPageTokens, cached - pos),
             memory_.type};
  if (shape.type == CacheType::f16 && page + 1 < piece.pages.end && n_query(piece) < kWidenFrom) {
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
    add_page(piece, {buffers_.keys, values, width, sequence.pos + first, n, CacheType::f32});
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

}  // namespace

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
