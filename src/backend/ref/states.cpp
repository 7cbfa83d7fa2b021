// Allocates and copies the state memory; everything starts at zero.
#include "backend/ref/states.h"

#include <algorithm>

#include "base/error.h"
#include "base/half.h"

namespace onebit::ref {
namespace {

DeltaSlot empty_slot(const DeltaNetState& net) {
  return {std::vector<float>(static_cast<size_t>((net.n_tap - 1) * net.n_channel)),
          std::vector<float>(static_cast<size_t>(net.n_v_head * net.d_v * net.d_k))};
}

Memory allocate(const KvState& kv, const StateSizes& sizes) {
  const int64_t n_cells = sizes.n_pages * kPageTokens, width = kv.n_head_kv * kv.d_head;
  return KvMemory{CacheRows(sizes.cache, n_cells, width), CacheRows(sizes.cache, n_cells, width)};
}

Memory allocate(const DeltaNetState& net, const StateSizes& sizes) {
  DeltaMemory memory;
  memory.slots.assign(static_cast<size_t>(sizes.n_slots), empty_slot(net));
  memory.tapes.resize(static_cast<size_t>(sizes.n_slots));
  memory.n_tape = sizes.n_tape;
  return memory;
}

Memory allocate(const RowsState& rows, const StateSizes& sizes) {
  return RowsMemory{sizes.n_rows, rows.width, std::vector<float>(static_cast<size_t>(sizes.n_rows * rows.width))};
}

}  // namespace

CacheRows::CacheRows(CacheType type, int64_t n_cells, int64_t width) : type_(type), n_cells_(n_cells), width_(width) {
  const auto size = static_cast<size_t>(n_cells * width);
  if (type == CacheType::f32) f32_.resize(size);
  if (type == CacheType::f16) f16_.resize(size);
}

void CacheRows::write(int64_t cell, const float* row) {
  CHECK(cell >= 0 && cell < n_cells_);
  for (int64_t c = 0; c < width_; ++c) {
    const auto at = static_cast<size_t>(cell * width_ + c);
    if (type_ == CacheType::f32) {
      f32_[at] = row[c];
    } else {
      f16_[at] = f32_to_f16(row[c]);
    }
  }
}

void CacheRows::read(int64_t cell, float* row) const {
  CHECK(cell >= 0 && cell < n_cells_);
  for (int64_t c = 0; c < width_; ++c) {
    const auto at = static_cast<size_t>(cell * width_ + c);
    row[c] = type_ == CacheType::f32 ? f32_[at] : f16_to_f32(f16_[at]);
  }
}

void CacheRows::copy(int64_t from, int64_t to, int64_t n_cells) {
  CHECK(from >= 0 && to >= 0 && from + n_cells <= n_cells_ && to + n_cells <= n_cells_);
  const int64_t size = n_cells * width_;
  if (type_ == CacheType::f32) std::copy_n(f32_.begin() + from * width_, size, f32_.begin() + to * width_);
  if (type_ == CacheType::f16) std::copy_n(f16_.begin() + from * width_, size, f16_.begin() + to * width_);
}

States::States(const std::vector<const State*>& states, const StateSizes& sizes) : sizes_(sizes) {
  for (const State* state : states) {
    memory_.emplace(state, std::visit([&](const auto& kind) { return allocate(kind, sizes); }, state->kind));
  }
}

void States::clear_slot(int32_t slot) {
  CHECK(slot >= 0 && slot < sizes_.n_slots);
  for (auto& [state, memory] : memory_) {
    if (auto* delta = std::get_if<DeltaMemory>(&memory)) {
      delta->slots[static_cast<size_t>(slot)] = empty_slot(std::get<DeltaNetState>(state->kind));
      delta->tapes[static_cast<size_t>(slot)].clear();
    }
  }
}

void States::copy_slot(int32_t from, int32_t to) {
  CHECK(from >= 0 && from < sizes_.n_slots && to >= 0 && to < sizes_.n_slots);
  if (from == to) return;
  for (auto& [state, memory] : memory_) {
    if (auto* delta = std::get_if<DeltaMemory>(&memory)) {
      delta->slots[static_cast<size_t>(to)] = delta->slots[static_cast<size_t>(from)];
      delta->tapes[static_cast<size_t>(to)] = delta->tapes[static_cast<size_t>(from)];
    }
  }
}

void States::copy_page(int32_t from, int32_t to) {
  CHECK(from >= 0 && from < sizes_.n_pages && to >= 0 && to < sizes_.n_pages);
  if (from == to) return;
  for (auto& [state, memory] : memory_) {
    if (auto* kv = std::get_if<KvMemory>(&memory)) {
      kv->k.copy(from * kPageTokens, to * kPageTokens, kPageTokens);
      kv->v.copy(from * kPageTokens, to * kPageTokens, kPageTokens);
    }
  }
}

Memory* States::find(const State* state) {
  const auto it = memory_.find(state);
  return it == memory_.end() ? nullptr : &it->second;
}

}  // namespace onebit::ref
