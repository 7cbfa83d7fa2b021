// Choosing columns: argmax and top_k over the vocabulary, and the walk of the DFlash2 candidate selector.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/step.h"
#include "base/gumbel.h"

namespace onebit::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float rank_of(float x) { return std::isnan(x) ? kLowest : x; }

/// A sorted list of at most k columns with their ranks. Columns must be offered in ascending order (or equal ranks
/// would not put the lowest first).
struct Best {
  int64_t k;
  int32_t* columns;
  float* ranks;
  int64_t n = 0;

  bool full() const { return n == k; }
  /// What a further column must exceed.
  float limit() const { return ranks[k - 1]; }
  void offer(int32_t column, float rank) {
    if (full() && !(rank > limit())) return;
    int64_t at = full() ? k - 1 : n++;
    for (; at > 0 && rank > ranks[at - 1]; --at) {
      ranks[at] = ranks[at - 1];
      columns[at] = columns[at - 1];
    }
    ranks[at] = rank;
    columns[at] = column;
  }
};

/// Columns that a thread should have to itself at least.
constexpr int64_t kMinPart = 4096;

/// How many parts each row is cut into, so that all threads have work.
int64_t parts_of(int64_t n_row, int64_t width, int n_thread) {
  if (n_row == 0 || n_row >= 4 * n_thread) return 1;
  return std::clamp<int64_t>((2 * n_thread + n_row - 1) / n_row, 1, std::max<int64_t>(1, width / kMinPart));
}

int64_t k_of(const CpuStep& step) { return step.op == Op::argmax ? 1 : step.as<TopKParams>().k; }

}  // namespace

int64_t largest(const Kernels& kernels, const float* x, int64_t from, int64_t to, int64_t k, int32_t* columns,
                float* ranks) {
  Best best{k, columns, ranks};
  int64_t c = from;
  for (; c < to && !best.full(); ++c) best.offer(static_cast<int32_t>(c), rank_of(x[c]));
  if (!best.full()) return best.n;
  for (c = kernels.find_above(x, c, to, best.limit()); c < to; c = kernels.find_above(x, c + 1, to, best.limit())) {
    best.offer(static_cast<int32_t>(c), x[c]);
  }
  return k;
}

Needs needs_top_k(const CpuStep& step, const PlanLimits& limits, int n_thread) {
  const int64_t k = k_of(step), n_row = max_rows(step.in[0].info, limits);
  const int64_t n_list = std::max(n_row, 4 * n_thread + n_row);  // rows * parts of any batch
  return {.thread = k * 4, .shared = n_list * (8 * k + 8)};
}

// Two passes: the k largest of every part of every row, then of every row's lists.
void run_top_k(const CpuStep& step, Worker& worker) {
  const Operand& x = step.in[0];
  const int64_t k = k_of(step), n_row = worker.n_row(x), parts = parts_of(n_row, x.width(), worker.n_thread());
  auto* counts = reinterpret_cast<int64_t*>(step.shared);
  auto* columns = reinterpret_cast<int32_t*>(counts + n_row * parts);
  auto* ranks = reinterpret_cast<float*>(columns + n_row * parts * k);
  for (int64_t i = worker.thread(); i < n_row * parts; i += worker.n_thread()) {
    const Range part = share(x.width(), kLanes, static_cast<int>(i % parts), static_cast<int>(parts));
    counts[i] = largest(worker.kernels(), x.f32(i / parts), part.begin, part.end, k, columns + i * k, ranks + i * k);
  }
  worker.barrier();
  const Range rows = worker.rows(x);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    Best best{k, step.out[0].i32(r), worker.scratch<float>()};
    for (int64_t list = r * parts; list < (r + 1) * parts; ++list) {
      for (int64_t i = 0; i < counts[list]; ++i) best.offer(columns[list * k + i], ranks[list * k + i]);
    }
    if (step.op == Op::argmax) continue;
    for (int64_t i = 0; i < k; ++i) step.out[1].f32(r)[i] = x.f32(r)[step.out[0].i32(r)[i]];
  }
}

Needs needs_select_walk(const CpuStep& step, const PlanLimits&, int) {
  return {.thread = (2 * step.as<SelectParams>().rank + kLanes) * 4};
}

// A walk is sequential; walks of different sequences are independent.
void run_select_walk(const CpuStep& step, Worker& worker) {
  const Operand &candidates = step.in[0], &unary = step.in[1], &gamma = step.in[2];
  const Kernels& kernels = worker.kernels();
  const int64_t k = unary.width(), rank = step.as<SelectParams>().rank;
  float *a = worker.scratch<float>(), *b = a + rank;
  int32_t sequence = -1, u = 0;
  int64_t draw = 0;
  for (int64_t r = 0; r < worker.n_row(unary); ++r) {
    const int64_t token = worker.token(unary, r);
    const Sequence& from = worker.sequence(token);
    if (worker.row(token).sequence != sequence) {
      sequence = worker.row(token).sequence;
      u = worker.batch().tokens[static_cast<size_t>(from.row)];
      draw = from.draw;
    }
    if (sequence % worker.n_thread() != worker.thread()) continue;
    gather_row(kernels, *step.matrices[0], u, a);
    for (int64_t i = 0; i < rank; ++i) a[i] *= gamma.f32(r)[i];
    float* scores = step.out[2].f32(r);
    for (int64_t j = 0; j < k; ++j) {
      gather_row(kernels, *step.matrices[1], candidates.i32(r)[j], b);
      scores[j] = unary.f32(r)[j] + kernels.dot(a, b, rank);
      if (from.temperature > 0) {
        scores[j] += from.temperature * static_cast<float>(gumbel(from.seed, draw, candidates.i32(r)[j]));
      }
    }
    ++draw;
    int32_t best = 0;
    float peak = 0, total = 0;
    largest(kernels, scores, 0, k, 1, &best, &peak);
    for (int64_t j = 0; j < k; ++j) total += std::exp(scores[j] - scores[best]);
    u = candidates.i32(r)[best];
    *step.out[0].i32(r) = u;
    *step.out[1].f32(r) = 1 / total;
  }
}

}  // namespace onebit::cpu
