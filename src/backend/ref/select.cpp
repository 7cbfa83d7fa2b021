// Choosing columns: argmax, top_k, and the walk of the DFlash2 candidate selector.
#include "backend/ref/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/ref/call.h"
#include "base/gumbel.h"
#include "gguf/blocks.h"

namespace onebit::ref {
namespace {

float rank_of(float x) { return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x; }

/// Row `id` of a codebook.
std::vector<float> codebook_row(const Weight& book, int32_t id) {
  CHECK(id >= 0 && id < book.n_out());
  std::vector<float> row(static_cast<size_t>(book.n_in()));
  decode_row(book.type, book.data.data() + id * row_bytes(book.type, book.n_in()), row.data(), book.n_in());
  return row;
}

}  // namespace

std::vector<int32_t> largest(const float* x, int64_t n, int64_t k) {
  std::vector<int32_t> columns(static_cast<size_t>(n));
  std::iota(columns.begin(), columns.end(), 0);
  std::partial_sort(columns.begin(), columns.begin() + k, columns.end(), [x](int32_t a, int32_t b) {
    const float xa = rank_of(x[a]), xb = rank_of(x[b]);
    return xa != xb ? xa > xb : a < b;
  });
  columns.resize(static_cast<size_t>(k));
  return columns;
}

void argmax(const OpCall& call) {
  const int64_t n_row = call.n_row(call.step.in[0]), width = call.in_info(0).width;
  int32_t* ids = call.data<int32_t>(call.step.out[0]);
  for (int64_t r = 0; r < n_row; ++r) ids[r] = largest(call.in(0) + r * width, width, 1)[0];
}

void top_k(const OpCall& call) {
  const int64_t n_row = call.n_row(call.step.in[0]), width = call.in_info(0).width, k = call.params<TopKParams>().k;
  int32_t* ids = call.data<int32_t>(call.step.out[0]);
  float* values = call.out(1);
  for (int64_t r = 0; r < n_row; ++r) {
    const float* x = call.in(0) + r * width;
    for (const int32_t column : largest(x, width, k)) {
      *ids++ = column;
      *values++ = x[column];
    }
  }
}

void select_walk(const OpCall& call) {
  const Value unary = call.step.in[1];
  const int64_t n_row = call.n_row(unary), k = call.info(unary).width, rank = call.params<SelectParams>().rank;
  const int32_t* candidates = call.data<int32_t>(call.step.in[0]);
  int32_t* ids = call.data<int32_t>(call.step.out[0]);
  int32_t sequence = -1, u = 0;
  int64_t draw = 0;
  for (int64_t r = 0; r < n_row; ++r) {
    const TokenRow& token = call.token(unary, r);
    const Sequence& from = call.sequence(token);
    if (token.sequence != sequence) {  // a new walk starts from the sequence's first token
      sequence = token.sequence;
      u = call.batch.tokens[static_cast<size_t>(from.row)];
      draw = from.draw;
    }
    const std::vector<float> a = codebook_row(call.weight(0), u);
    const float* gamma = call.in(2) + r * rank;
    float* scores = call.out(2) + r * k;
    for (int64_t j = 0; j < k; ++j) {
      const std::vector<float> b = codebook_row(call.weight(1), candidates[r * k + j]);
      float sum = 0;
      for (int64_t i = 0; i < rank; ++i) sum += a[static_cast<size_t>(i)] * gamma[i] * b[static_cast<size_t>(i)];
      scores[j] = call.in(1)[r * k + j] + sum;
      if (from.temperature > 0) {
        scores[j] += from.temperature * static_cast<float>(gumbel(from.seed, draw, candidates[r * k + j]));
      }
    }
    ++draw;
    const int32_t best = largest(scores, k, 1)[0];
    float total = 0;
    for (int64_t j = 0; j < k; ++j) total += std::exp(scores[j] - scores[best]);
    u = candidates[r * k + best];
    ids[r] = u;
    call.out(1)[r] = 1 / total;
  }
}

}  // namespace onebit::ref
