// The cache of keys and values, and softmax attention over it.
//
// Work is cut into pieces of (sequence, key head, block of rows): all query heads that share the key head and some tens
// of rows are stacked into one matrix of queries, so that a page of keys and values is read once for all of them. A
// piece walks the pages with a running maximum and sum per query (online softmax), one page of 64 positions at a time:
// scores = Q K^T, probabilities, then O += P V, both products by the gemm kernels. When there are fewer pieces than
// threads can share (decoding with few key heads), the pages are split as well and partial results are merged.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/step.h"

namespace onebit::cpu {
namespace {

constexpr int64_t kQueries = 96;       // queries stacked in a piece, at least those of one row
constexpr int64_t kWidenFrom = 13;     // from so many queries on, a page is widened to f32 once instead of per tile
constexpr int64_t kMinSplitPages = 4;  // pages that are worth a thread of their own
constexpr float kNothing = -std::numeric_limits<float>::infinity();

int64_t rows_per_piece(const AttentionParams& params) {
  return std::max<int64_t>(1, kQueries * params.n_head_kv / params.n_head);
}
int64_t queries_per_piece(const AttentionParams& params) {
  return rows_per_piece(params) * (params.n_head / params.n_head_kv);
}

/// A thread's scratch.
struct Buffers {
  float *q, *o;          // [queries, d_head]
  float *peak, *sum;     // [queries]
  float* scores;         // [queries, kPageTokens]
  float *keys, *values;  // one page in f32: [d_head, kPageTokens], [kPageTokens, d_head]

  static int64_t floats(const AttentionParams& params) {
    const int64_t n = queries_per_piece(params);
    return 2 * n * params.d_head + 2 * n + n * kPageTokens + 2 * kPageTokens * params.d_head + 64;
  }
  Buffers(const AttentionParams& params, float* memory) {
    const int64_t n = queries_per_piece(params), page = kPageTokens * params.d_head;
    keys = memory;
    values = keys + page;
    scores = values + page;
    q = scores + n * kPageTokens;
    o = q + n * params.d_head;
    peak = o + n * params.d_head;
    sum = peak + n;
  }
};

/// Query rows of one sequence (rows of the value q: token rows or output rows) with one key head, over some cached
/// pages and, when `block` is set, the sequence's own rows.
struct Piece {
  const Sequence* sequence = nullptr;
  int64_t head_kv = 0;
  Range rows;
  Range pages;
  bool block = false;
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
};

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

  /// Leaves unnormalised outputs, maxima and sums of the piece's queries in the buffers.
  void compute(const Piece& piece);
  /// Writes o / sum to the output rows.
  void finish(const Piece& piece);
  /// Stores the buffers' results, or adds stored ones to the buffers.
  void save(const Piece& piece, float* partial) const;
  void merge(const Piece& piece, const float* partial);

  int64_t n_query(const Piece& piece) const { return piece.rows.size() * group_; }

 private:
  bool with_block() const { return step_.op == Op::block_attention; }
  /// Positions [begin, end) that a query row of the sequence sees.
  Range visible(const Sequence& sequence, int64_t row) const;
  void load_queries(const Piece& piece);
  void add_page(const Piece& piece, const Page& page);
  void soften(const Piece& piece, const Page& page);
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

void Attention::load_queries(const Piece& piece) {
  const int64_t d = params_.d_head, width = group_ * d;  // the heads of a group are neighbours
  for (int64_t r = 0; r < piece.rows.size(); ++r) {
    const float* q = step_.in[0].f32(piece.rows.begin + r) + piece.head_kv * width;
    kernels_.scale(q, params_.scale, width, buffers_.q + r * width);
  }
  const int64_t n = n_query(piece);
  std::fill_n(buffers_.o, n * d, 0.0f);
  std::fill_n(buffers_.peak, n, kNothing);
  std::fill_n(buffers_.sum, n, 0.0f);
}

/// Scores of a page -> probabilities against the running maximum; earlier outputs and sums are rescaled to it.
void Attention::soften(const Piece& piece, const Page& page) {
  const int64_t d = params_.d_head;
  for (int64_t i = 0; i < n_query(piece); ++i) {
    const Range seen = visible(*piece.sequence, piece.rows.begin + i / group_);
    const int64_t begin = std::clamp<int64_t>(seen.begin - page.pos, 0, page.n);
    const int64_t end = std::clamp<int64_t>(seen.end - page.pos, begin, page.n);
    float* scores = buffers_.scores + i * kPageTokens;
    std::fill_n(scores, begin, 0.0f);
    std::fill_n(scores + end, page.n - end, 0.0f);
    const float peak = std::max(buffers_.peak[i], kernels_.max(scores + begin, end - begin));
    if (peak == kNothing) {  // nothing seen so far
      std::fill_n(scores, page.n, 0.0f);
      continue;
    }
    const float fade = std::exp(buffers_.peak[i] - peak);
    if (fade != 1) kernels_.scale(buffers_.o + i * d, fade, d, buffers_.o + i * d);
    buffers_.sum[i] = buffers_.sum[i] * fade + kernels_.exp_sum(scores + begin, peak, end - begin, scores + begin);
    buffers_.peak[i] = peak;
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
  const int64_t n = n_query(piece), d = params_.d_head;
  gemm(buffers_.q, d, 1, page.keys, kPageTokens, buffers_.scores, kPageTokens, n, page.n, d, false);
  soften(piece, page);
  gemm(buffers_.scores, kPageTokens, 1, page.values, page.value_row, buffers_.o, d, n, d, page.n, true);
}

void Attention::add_cached(const Piece& piece, int64_t page) {
  const Sequence& sequence = *piece.sequence;
  const int64_t cached = with_block() ? sequence.pos : position(worker_, step_.in[0], piece.rows.end - 1) + 1;
  const int64_t id = sequence.pages[static_cast<size_t>(page)], pos = page * kPageTokens;
  add_page(piece, {memory_.key_page(id, piece.head_kv), memory_.value_page(id, piece.head_kv), params_.d_head, pos,
                   std::min(kPageTokens, cached - pos), memory_.type == CacheType::f16});
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

void Attention::compute(const Piece& piece) {
  load_queries(piece);
  for (int64_t page = piece.pages.begin; page < piece.pages.end; ++page) add_cached(piece, page);
  if (piece.block) add_own_rows(piece);
}

void Attention::finish(const Piece& piece) {
  const int64_t d = params_.d_head;
  for (int64_t i = 0; i < n_query(piece); ++i) {
    float* y = step_.out[0].f32(piece.rows.begin + i / group_) + (piece.head_kv * group_ + i % group_) * d;
    kernels_.scale(buffers_.o + i * d, 1 / buffers_.sum[i], d, y);
  }
}

// A partial result: o [queries, d_head], peak [queries], sum [queries].
void Attention::save(const Piece& piece, float* partial) const {
  const int64_t n = n_query(piece), d = params_.d_head;
  std::copy_n(buffers_.o, n * d, partial);
  std::copy_n(buffers_.peak, n, partial + n * d);
  std::copy_n(buffers_.sum, n, partial + n * d + n);
}

void Attention::merge(const Piece& piece, const float* partial) {
  const int64_t n = n_query(piece), d = params_.d_head;
  const float *peaks = partial + n * d, *sums = peaks + n;
  for (int64_t i = 0; i < n; ++i) {
    const float peak = std::max(buffers_.peak[i], peaks[i]);
    if (peak == kNothing) continue;
    const float mine = std::exp(buffers_.peak[i] - peak), theirs = std::exp(peaks[i] - peak);
    kernels_.scale(buffers_.o + i * d, mine, d, buffers_.o + i * d);
    kernels_.axpy(theirs, partial + i * d, d, buffers_.o + i * d);
    buffers_.sum[i] = buffers_.sum[i] * mine + sums[i] * theirs;
    buffers_.peak[i] = peak;
  }
}

/// The pieces of a batch, numbered; a piece may be split over its pages.
class Pieces {
 public:
  Pieces(const CpuStep& step, const Worker& worker)
      : params_(step.as<AttentionParams>()), block_(step.op == Op::block_attention), q_(step.in[0]), worker_(worker) {
    for (const Sequence& sequence : worker.batch().sequences) n_ += n_blocks(query_rows(sequence)) * params_.n_head_kv;
    const int64_t wanted = 4 * worker.n_thread();
    n_split_ = worker.n_thread() == 1 || n_ == 0 || n_ >= wanted ? 1 : (wanted + n_ - 1) / n_;
  }

  int64_t n() const { return n_; }
  int64_t n_split() const { return n_split_; }
  /// Most partial results of any batch.
  static int64_t most_partials(int n_thread) { return 8 * n_thread; }

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

  /// Part `part` of n_split() of a piece's pages. Short ranges are not split: all their pages are in part 0.
  Piece part(Piece piece, int64_t part) const {
    const int64_t n = std::clamp<int64_t>(piece.pages.size() / kMinSplitPages, 1, n_split_);
    const Range mine = part < n ? share(piece.pages.size(), 1, static_cast<int>(part), static_cast<int>(n)) : Range{};
    piece.pages = {piece.pages.begin + mine.begin, piece.pages.begin + mine.end};
    piece.block = block_ && part == 0;
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
  /// Cached pages that some of the rows see.
  Range pages(const Sequence& sequence, const Range& rows) const {
    const int64_t first_pos = position(worker_, q_, rows.begin), last_pos = position(worker_, q_, rows.end - 1);
    const int64_t cached = block_ ? sequence.pos : last_pos + 1, window = params_.window;
    const int64_t first = window > 0 ? std::max<int64_t>(0, first_pos - window + 1) / kPageTokens : 0;
    const int64_t last = (cached + kPageTokens - 1) / kPageTokens;
    return {std::min(first, last), last};
  }

  const AttentionParams& params_;
  bool block_;
  const Operand& q_;
  const Worker& worker_;
  int64_t n_ = 0, n_split_ = 1;
};

int64_t partial_floats(const AttentionParams& params) { return queries_per_piece(params) * (params.d_head + 2); }

/// Writes one head of one row into its page.
void store_head(const KvMemory& memory, const Kernels& kernels, int64_t cell, int64_t head, const float* k,
                const float* v, uint16_t* halves) {
  const int64_t page = cell / kPageTokens, at = cell % kPageTokens, d = memory.d_head;
  if (memory.type == CacheType::f32) {
    auto* keys = reinterpret_cast<float*>(memory.key_page(page, head));
    for (int64_t i = 0; i < d; ++i) keys[i * kPageTokens + at] = k[i];
    std::copy_n(v, d, reinterpret_cast<float*>(memory.value_page(page, head)) + at * d);
    return;
  }
  auto* keys = reinterpret_cast<uint16_t*>(memory.key_page(page, head));
  kernels.to_f16(k, d, halves);
  for (int64_t i = 0; i < d; ++i) keys[i * kPageTokens + at] = halves[i];
  kernels.to_f16(v, d, reinterpret_cast<uint16_t*>(memory.value_page(page, head)) + at * d);
}

}  // namespace

Needs needs_kv_store(const CpuStep& step, const PlanLimits&, int) { return {.thread = step.in[0].width() * 2}; }

// Split by heads: rows of one page lie in the same cache lines of its transposed keys.
void run_kv_store(const CpuStep& step, Worker& worker) {
  const auto& memory = step.memory<KvMemory>();
  const int64_t d = memory.d_head;
  const Range heads = share(memory.n_head_kv, 1, worker.thread(), worker.n_thread());
  for (int64_t r = 0; r < worker.n_row(step.in[0]); ++r) {
    const int64_t token = worker.token(step.in[0], r), pos = worker.row(token).pos;
    const int64_t page = worker.sequence(token).pages[static_cast<size_t>(pos / kPageTokens)];
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      store_head(memory, worker.kernels(), page * kPageTokens + pos % kPageTokens, h, step.in[0].f32(r) + h * d,
                 step.in[1].f32(r) + h * d, worker.scratch<uint16_t>());
    }
  }
}

Needs needs_attention(const CpuStep& step, const PlanLimits&, int n_thread) {
  const auto& params = step.as<AttentionParams>();
  return {.thread = Buffers::floats(params) * 4,
          .shared = Pieces::most_partials(n_thread) * partial_floats(params) * 4};
}

void run_attention(const CpuStep& step, Worker& worker) {
  const Pieces pieces(step, worker);
  Attention attention(step, worker);
  const int64_t n_split = pieces.n_split(), step_floats = partial_floats(step.as<AttentionParams>());
  auto* partials = reinterpret_cast<float*>(step.shared);
  for (int64_t i = step.claims->fetch_add(1); i < pieces.n() * n_split; i = step.claims->fetch_add(1)) {
    const Piece piece = pieces.piece(i / n_split);
    attention.compute(n_split == 1 ? piece : pieces.part(piece, i % n_split));
    if (n_split == 1) {
      attention.finish(piece);
    } else {
      attention.save(piece, partials + i * step_floats);
    }
  }
  if (n_split == 1) return;
  worker.barrier();
  for (int64_t i = worker.thread(); i < pieces.n(); i += worker.n_thread()) {
    const Piece piece = pieces.piece(i);
    Piece nothing = piece;
    nothing.pages = {};
    nothing.block = false;
    attention.compute(nothing);
    for (int64_t part = 0; part < n_split; ++part)
      attention.merge(piece, partials + (i * n_split + part) * step_floats);
    attention.finish(piece);
  }
}

}  // namespace onebit::cpu
