// The attention cache and softmax attention over it, alone or together with a block of rows that is not cached.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/ref/call.h"

namespace onebit::ref {
namespace {

/// The cache cell of a position of a sequence. The page must not have been dropped.
int64_t cell_of(const Sequence& sequence, int64_t pos) {
  const auto page = static_cast<size_t>(pos / kPageTokens);
  CHECK(page < sequence.pages.size() && sequence.pages[page] >= 0);
  return sequence.pages[page] * kPageTokens + pos % kPageTokens;
}

/// One key and value row that a query may see: a cache cell, or a row of the block.
struct Visible {
  bool cached;
  int64_t at;
};

/// Element `column` of key (or value) row `row`.
float element(const Visible& row, const CacheRows& cache, const float* block, int64_t width, int64_t column) {
  return row.cached ? cache.at(row.at, column) : block[row.at * width + column];
}

/// softmax(scale q k^T) v of one query row over `rows`, all heads. k, v: block rows, unused when all rows are cached.
void attend(const AttentionParams& params, const float* q, const std::vector<Visible>& rows, const KvMemory& memory,
            const float* k, const float* v, float* y) {
  const int64_t d = params.d_head, width = params.n_head_kv * d, heads_per_kv = params.n_head / params.n_head_kv;
  std::vector<float> p(rows.size());
  for (int64_t h = 0; h < params.n_head; ++h) {
    const int64_t first = h / heads_per_kv * d;  // column of the key head
    float peak = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < rows.size(); ++i) {
      float dot = 0;
      for (int64_t c = 0; c < d; ++c) dot += q[h * d + c] * element(rows[i], memory.k, k, width, first + c);
      p[i] = dot * params.scale;
      peak = std::max(peak, p[i]);
    }
    float sum = 0;
    for (float& value : p) {
      value = std::exp(value - peak);
      sum += value;
    }
    for (int64_t c = 0; c < d; ++c) {
      float total = 0;
      for (size_t i = 0; i < rows.size(); ++i) total += p[i] * element(rows[i], memory.v, v, width, first + c);
      y[h * d + c] = total / sum;
    }
  }
}

/// Cached positions [first, end) that a query at `pos` sees through the window.
void add_cached(const Sequence& sequence, const AttentionParams& params, int64_t pos, int64_t end,
                std::vector<Visible>& rows) {
  const int64_t first = params.window > 0 ? std::max<int64_t>(0, pos - params.window + 1) : 0;
  for (int64_t p = first; p < end; ++p) rows.push_back({true, cell_of(sequence, p)});
}

}  // namespace

void kv_store(const OpCall& call) {
  auto& memory = call.memory_of<KvMemory>();
  const Value k = call.step.in[0];
  const int64_t n_row = call.n_row(k), width = call.info(k).width;
  for (int64_t r = 0; r < n_row; ++r) {
    const TokenRow& token = call.token(k, r);
    const int64_t cell = cell_of(call.sequence(token), call.position(token));
    memory.k.write(cell, call.in(0) + r * width);
    memory.v.write(cell, call.in(1) + r * width);
  }
}

void attention(const OpCall& call) {
  const auto& params = call.params<AttentionParams>();
  const Value q = call.step.in[0];
  const int64_t n_row = call.n_row(q), width = call.info(q).width;
  std::vector<Visible> rows;
  for (int64_t r = 0; r < n_row; ++r) {
    const TokenRow& token = call.token(q, r);
    const int64_t pos = call.position(token);
    rows.clear();
    add_cached(call.sequence(token), params, pos, pos + 1, rows);
    attend(params, call.in(0) + r * width, rows, call.memory_of<KvMemory>(), nullptr, nullptr, call.out() + r * width);
  }
}

void block_attention(const OpCall& call) {
  const auto& params = call.params<AttentionParams>();
  const Value q = call.step.in[0];
  const int64_t n_row = call.n_row(q), width = call.info(q).width;
  std::vector<Visible> rows;
  for (int64_t r = 0; r < n_row; ++r) {
    const TokenRow& token = call.token(q, r);
    const Sequence& sequence = call.sequence(token);
    const int64_t pos = call.position(token);
    rows.clear();
    add_cached(sequence, params, pos, sequence.pos, rows);  // nothing cached at or after the block is ever seen
    for (int64_t i = 0; i < sequence.n_tok; ++i) {
      const int64_t distance = std::abs(pos - (sequence.pos + i));
      const bool in_window = params.window == 0 || distance < params.window;
      const bool in_order = !params.causal || sequence.pos + i <= pos;
      if (in_window && in_order) rows.push_back({false, sequence.row + i});
    }
    attend(params, call.in(0) + r * width, rows, call.memory_of<KvMemory>(), call.in(1), call.in(2),
           call.out() + r * width);
  }
}

}  // namespace onebit::ref
