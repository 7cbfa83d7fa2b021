// A product whose columns are only chosen from (argmax or top_k over the vocabulary): every thread keeps the k largest
// of what it computes, a few strips at a time, and the choice merges the threads' lists. Rows of logits are not
// written.
#include <cmath>
#include <limits>

#include "backend/cpu/step.h"
#include "backend/cpu/tiles.h"

namespace onebit::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int64_t kMostColumns = kMostStripsPerClaim * kLanes;

float rank_of(float x) { return std::isnan(x) ? kLowest : x; }

/// A number that everything from `limit` on is above. Denormal numbers count as 0 here, so that 0 has another
/// neighbour.
float just_below(float limit) {
  return limit == 0 ? -std::numeric_limits<float>::min() : std::nextafter(limit, kLowest);
}

/// At most k columns and their values: largest first, the lower column first among equals.
struct List {
  int64_t k;
  int64_t* n;
  int32_t* columns;
  float* values;

  bool full() const { return *n == k; }
  float limit() const { return rank_of(values[k - 1]); }
  bool goes_before(int32_t column, float rank, int64_t i) const {
    const float other = rank_of(values[i]);
    return rank > other || (rank == other && column < columns[i]);
  }
  void offer(int32_t column, float value) {
    const float rank = rank_of(value);
    if (full() && !goes_before(column, rank, k - 1)) return;
    int64_t at = full() ? k - 1 : (*n)++;
    for (; at > 0 && goes_before(column, rank, at - 1); --at) {
      columns[at] = columns[at - 1];
      values[at] = values[at - 1];
    }
    columns[at] = column;
    values[at] = value;
  }
};

List list_of(const Shortlists& lists, int thread, int64_t row) {
  uint8_t* at = lists.memory.data() + thread * lists.thread_bytes + row * Shortlists::row_bytes(lists.k);
  auto* columns = reinterpret_cast<int32_t*>(at + 8);
  return {lists.k, reinterpret_cast<int64_t*>(at), columns, reinterpret_cast<float*>(columns + lists.k)};
}

/// Offers x [n], columns `first` and following. Equals of the last in the list count: their column may be the lower
/// one.
void offer_columns(const Kernels& kernels, const float* x, int64_t n, int64_t first, List& list) {
  for (int64_t c = 0; c < n; ++c) {
    if (list.full() && list.limit() > kLowest) {
      c = kernels.find_above(x, c, n, just_below(list.limit()));
      if (c == n) return;
    }
    list.offer(static_cast<int32_t>(first + c), x[c]);
  }
}

bool lists_wanted(const CpuStep& step, const Worker& worker) {
  return !step.shortlists->output || worker.batch().choices_only;
}

}  // namespace

Shortlists::Shortlists(int64_t n_column, int64_t n_row, int n_thread, const uint8_t* product)
    : k(n_column),
      output(product),
      thread_bytes((n_row * row_bytes(k) + 127) / 128 * 128),
      memory(thread_bytes * n_thread) {}

int64_t shortlist_scratch_bytes(const CpuStep& step, const PlanLimits& limits) {
  return max_rows(step.out[0].info, limits) * kMostColumns * 4;
}

void run_matmul_shortlist(const CpuStep& step, Worker& worker) {
  if (!lists_wanted(step, worker)) return run_matmul(step, worker);
  const LoadedWeight& weight = *step.matrices[0];
  const int64_t n_row = worker.n_row(step.in[0]);
  for (int64_t r = 0; r < n_row; ++r) *list_of(*step.shortlists, worker.thread(), r).n = 0;
  if (n_row == 0) return;
  auto* y = worker.scratch<float>();
  auto* scratch = worker.scratch<uint8_t>() + n_row * kMostColumns * 4;
  const Entered entered(worker.kernels(), weight, n_row);
  worker.deal(step, weight.n_strip(), strips_per_claim(weight, n_row, worker.n_thread()), [&](Range strips) {
    const int64_t first = strips.begin * kLanes, n = std::min(strips.end * kLanes, weight.n_out) - first;
    multiply_claim(step, worker, strips, {y - first, kMostColumns, nullptr}, scratch);
    for (int64_t r = 0; r < n_row; ++r) {
      List list = list_of(*step.shortlists, worker.thread(), r);
      offer_columns(worker.kernels(), y + r * kMostColumns, n, first, list);
    }
  });
}

void run_choose_shortlist(const CpuStep& step, Worker& worker) {
  if (!lists_wanted(step, worker)) return run_top_k(step, worker);
  const Range rows = worker.rows(step.in[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    List all = list_of(*step.shortlists, 0, r);
    for (int thread = 1; thread < worker.n_thread(); ++thread) {
      const List other = list_of(*step.shortlists, thread, r);
      for (int64_t i = 0; i < *other.n; ++i) all.offer(other.columns[i], other.values[i]);
    }
    std::copy_n(all.columns, all.k, step.out[0].i32(r));
    if (step.op == Op::top_k) std::copy_n(all.values, all.k, step.out[1].f32(r));
  }
}

}  // namespace onebit::cpu
