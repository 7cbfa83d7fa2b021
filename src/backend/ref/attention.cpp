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

/// The key and value rows that one query sees, in ascending order of position.
struct Visible {
  int64_t width = 0;                  // n_head_kv * d_head
  std::vector<float> k = {}, v = {};  // [n, width]

  int64_t size() const { return static_cast<int64_t>(k.size()) / width; }

  /// Cached positions [first, end) through the window of a query at `pos`, those in missing front pages left out.
  void add_cached(const KvMemory& memory, const Sequence& sequence, const AttentionParams& params, int64_t pos,
                  int64_t end) {
    int64_t first = params.window > 0 ? std::max<int64_t>(0, pos - params.window + 1) : 0;
    while (first < end && sequence.pages[static_cast<size_t>(first / kPageTokens)] < 0) ++first;
    for (int64_t p = first; p < end; ++p) {
      k.resize(k.size() + static_cast<size_t>(width));
      v.resize(k.size());
      memory.k.read(cell_of(sequence, p), k.data() + k.size() - width);
      memory.v.read(cell_of(sequence, p), v.data() + v.size() - width);
    }
  }

  void add_row(const float* k_row, const float* v_row) {
    k.insert(k.end(), k_row, k_row + width);
    v.insert(v.end(), v_row, v_row + width);
  }
};

/// softmax(scale q k^T) v of one query row, all heads.
void attend(const AttentionParams& params, const float* q, const Visible& rows, float* y) {
  const int64_t d = params.d_head, heads_per_kv = params.n_head / params.n_head_kv;
  std::vector<float> p(static_cast<size_t>(rows.size()));
  for (int64_t h = 0; h < params.n_head; ++h) {
    const float* k = rows.k.data() + h / heads_per_kv * d;  // the key head's columns of row 0
    const float* v = rows.v.data() + h / heads_per_kv * d;
    float peak = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < rows.size(); ++i) {
      float dot = 0;
      for (int64_t c = 0; c < d; ++c) dot += q[h * d + c] * k[i * rows.width + c];
      p[static_cast<size_t>(i)] = dot * params.scale;
      peak = std::max(peak, p[static_cast<size_t>(i)]);
    }
    float sum = 0;
    for (float& value : p) {
      value = std::exp(value - peak);
      sum += value;
    }
    for (int64_t c = 0; c < d; ++c) {
      float total = 0;
      for (int64_t i = 0; i < rows.size(); ++i) total += p[static_cast<size_t>(i)] * v[i * rows.width + c];
      y[h * d + c] = total / sum;
    }
  }
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
  for (int64_t r = 0; r < n_row; ++r) {
    const TokenRow& token = call.token(q, r);
    const int64_t pos = call.position(token);
    Visible rows{.width = params.n_head_kv * params.d_head};
    rows.add_cached(call.memory_of<KvMemory>(), call.sequence(token), params, pos, pos + 1);
    attend(params, call.in(0) + r * width, rows, call.out() + r * width);
  }
}

void block_attention(const OpCall& call) {
  const auto& params = call.params<AttentionParams>();
  const Value q = call.step.in[0];
  const int64_t n_row = call.n_row(q), width = call.info(q).width;
  for (int64_t r = 0; r < n_row; ++r) {
    const TokenRow& token = call.token(q, r);
    const Sequence& sequence = call.sequence(token);
    const int64_t pos = call.position(token);
    Visible rows{.width = params.n_head_kv * params.d_head};
    // Nothing that is cached at or after the block's first position is ever seen.
    rows.add_cached(call.memory_of<KvMemory>(), sequence, params, pos, sequence.pos);
    for (int64_t i = 0; i < sequence.n_tok; ++i) {
      const int64_t distance = std::abs(pos - (sequence.pos + i)), at = (sequence.row + i) * rows.width;
      const bool in_window = params.window == 0 || distance < params.window;
      const bool in_order = !params.causal || sequence.pos + i <= pos;
      if (in_window && in_order) rows.add_row(call.in(1) + at, call.in(2) + at);
    }
    attend(params, call.in(0) + r * width, rows, call.out() + r * width);
  }
}

}  // namespace onebit::ref
