// Allocates and copies the state memory; everything starts at zero.
#include "backend/ref/states.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "gguf/blocks.h"

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

/// Puts arrays into bytes one after another.
class BytesOut {
 public:
  explicit BytesOut(std::span<uint8_t> to) : to_(to) {}
  ~BytesOut() { CHECK(to_.empty()); }
  void put(const void* from, size_t n) {
    CHECK(n <= to_.size());
    std::memcpy(to_.data(), from, n);
    to_ = to_.subspan(n);
  }
  void put(const std::vector<float>& from) { put(from.data(), from.size() * 4); }

 private:
  std::span<uint8_t> to_;
};

/// ... and takes them out again.
class BytesIn {
 public:
  explicit BytesIn(std::span<const uint8_t> from) : from_(from) {}
  ~BytesIn() { CHECK(from_.empty()); }
  void take(void* to, size_t n) {
    CHECK(n <= from_.size());
    std::memcpy(to, from_.data(), n);
    from_ = from_.subspan(n);
  }
  void take(std::vector<float>& to) { take(to.data(), to.size() * 4); }

 private:
  std::span<const uint8_t> from_;
};

TapeRow empty_tape_row(const DeltaNetState& net) {
  const auto n_channel = static_cast<size_t>(net.n_channel), n_v_head = static_cast<size_t>(net.n_v_head);
  return {std::vector<float>(n_channel), std::vector<float>(n_v_head), std::vector<float>(n_v_head)};
}

}  // namespace

CacheRows::CacheRows(CacheType type, int64_t n_cells, int64_t width) : type_(type), n_cells_(n_cells), width_(width) {
  const auto size = static_cast<size_t>(n_cells * width);
  if (type == CacheType::f32) f32_.resize(size);
  if (type == CacheType::f16) f16_.resize(size);
  if (type == CacheType::q8_0) q8_.resize(static_cast<size_t>(n_cells * row_bytes()));
}

void CacheRows::write(int64_t cell, const float* row) {
  CHECK(cell >= 0 && cell < n_cells_);
  if (type_ == CacheType::q8_0) return encode_row(BlockType::q8_0, row, q8_.data() + cell * row_bytes(), width_);
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
  if (type_ == CacheType::q8_0) return decode_row(BlockType::q8_0, q8_.data() + cell * row_bytes(), row, width_);
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
  if (type_ == CacheType::q8_0) {
    std::copy_n(q8_.begin() + from * row_bytes(), n_cells * row_bytes(), q8_.begin() + to * row_bytes());
  }
}

std::span<uint8_t> CacheRows::bytes(int64_t cell, int64_t n_cells) {
  CHECK(cell >= 0 && cell + n_cells <= n_cells_);
  const auto at = static_cast<size_t>(cell * width_), n = static_cast<size_t>(n_cells * width_);
  if (type_ == CacheType::f32) return {reinterpret_cast<uint8_t*>(f32_.data() + at), n * 4};
  if (type_ == CacheType::q8_0) {
    return {q8_.data() + cell * row_bytes(), static_cast<size_t>(n_cells * row_bytes())};
  }
  return {reinterpret_cast<uint8_t*>(f16_.data() + at), n * 2};
}

States::States(const std::vector<const State*>& states, const StateSizes& sizes) : sizes_(sizes), order_(states) {
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

void States::read_slot(int32_t slot, std::span<uint8_t> to) const {
  CHECK(slot >= 0 && slot < sizes_.n_slots);
  BytesOut out(to);
  for (const State* state : order_) {
    const auto* delta = std::get_if<DeltaMemory>(&memory_.at(state));
    if (!delta) continue;
    out.put(delta->slots[static_cast<size_t>(slot)].window);
    out.put(delta->slots[static_cast<size_t>(slot)].matrix);
    std::vector<TapeRow> tape = delta->tapes[static_cast<size_t>(slot)];
    tape.resize(static_cast<size_t>(sizes_.n_tape), empty_tape_row(std::get<DeltaNetState>(state->kind)));
    for (const TapeRow& row : tape) {
      for (const auto* part : {&row.u, &row.beta, &row.alpha}) out.put(*part);
    }
  }
}

void States::write_slot(int32_t slot, std::span<const uint8_t> from) {
  CHECK(slot >= 0 && slot < sizes_.n_slots);
  BytesIn in(from);
  for (const State* state : order_) {
    auto* delta = std::get_if<DeltaMemory>(&memory_.at(state));
    if (!delta) continue;
    in.take(delta->slots[static_cast<size_t>(slot)].window);
    in.take(delta->slots[static_cast<size_t>(slot)].matrix);
    std::vector<TapeRow>& tape = delta->tapes[static_cast<size_t>(slot)];
    tape.assign(static_cast<size_t>(sizes_.n_tape), empty_tape_row(std::get<DeltaNetState>(state->kind)));
    for (TapeRow& row : tape) {
      for (auto* part : {&row.u, &row.beta, &row.alpha}) in.take(*part);
    }
  }
}

void States::read_page(int32_t page, std::span<uint8_t> to) const {
  CHECK(page >= 0 && page < sizes_.n_pages);
  BytesOut out(to);
  for (const State* state : order_) {
    const auto* kv = std::get_if<KvMemory>(&memory_.at(state));
    if (!kv) continue;
    for (const CacheRows* rows : {&kv->k, &kv->v}) {
      const auto bytes = rows->bytes(page * kPageTokens, kPageTokens);
      out.put(bytes.data(), bytes.size());
    }
  }
}

void States::write_page(int32_t page, std::span<const uint8_t> from) {
  CHECK(page >= 0 && page < sizes_.n_pages);
  BytesIn in(from);
  for (const State* state : order_) {
    auto* kv = std::get_if<KvMemory>(&memory_.at(state));
    if (!kv) continue;
    for (CacheRows* rows : {&kv->k, &kv->v}) {
      const auto bytes = rows->bytes(page * kPageTokens, kPageTokens);
      in.take(bytes.data(), bytes.size());
    }
  }
}

Memory* States::find(const State* state) {
  const auto it = memory_.find(state);
  return it == memory_.end() ? nullptr : &it->second;
}

}  // namespace onebit::ref
