// The cache of keys and values: rows of a batch to their pages.
#include <algorithm>
#include <cstring>

#include "backend/cpu/step.h"
#include "gguf/blocks.h"

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

/// Scratch: a head of one row in blocks.
void store_q8_0(const KvMemory& memory, const CpuStep& step, const PageRows& rows, int64_t head, uint8_t* blocks) {
  constexpr int64_t kScale = 2;  // bytes before the codes of a block
  const int64_t d = memory.d_head, n_block = d / kBlock, block_bytes = kScale + kBlock;
  uint8_t *keys = memory.key_page(rows.page, head), *values = memory.value_page(rows.page, head);
  for (int64_t r = 0, at = rows.at; r < rows.n; ++r, ++at) {
    encode_row(BlockType::q8_0, step.in[0].f32(rows.row + r) + head * d, blocks, d);
    for (int64_t b = 0; b < n_block; ++b) {
      const uint8_t* block = blocks + b * block_bytes;
      std::memcpy(keys + kPageTokens * d + (b * kPageTokens + at) * kScale, block, kScale);
      for (int64_t i = 0; i < kBlock; ++i) keys[(b * kBlock + i) * kPageTokens + at] = block[kScale + i];
    }
    encode_row(BlockType::q8_0, step.in[1].f32(rows.row + r) + head * d, blocks, d);
    for (int64_t b = 0; b < n_block; ++b) {
      const uint8_t* block = blocks + b * block_bytes;
      std::memcpy(values + kPageTokens * d + (at * n_block + b) * kScale, block, kScale);
      std::memcpy(values + at * d + b * kBlock, block + kScale, kBlock);
    }
  }
}

}  // namespace

Needs needs_kv_store(const CpuStep& step, const PlanLimits&, int) {
  return {.thread = kPageTokens * step.memory<KvMemory>().d_head * 2};  // more than a row in blocks
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
      switch (memory.type) {
        case CacheType::f32:
          store_f32(memory, step, rows, h);
          break;
        case CacheType::f16:
          store_f16(memory, worker.kernels(), step, rows, h, worker.scratch<uint16_t>());
          break;
        case CacheType::q8_0:
          store_q8_0(memory, step, rows, h, worker.scratch<uint8_t>());
          break;
      }
    }
    r += rows.n;
  }
}

}  // namespace onebit::cpu
