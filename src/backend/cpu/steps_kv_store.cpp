// The cache of keys and values: rows of a batch to their pages.
#include <algorithm>

#include "backend/cpu/step.h"

namespace onebit::cpu {
namespace {

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

}  // namespace onebit::cpu
