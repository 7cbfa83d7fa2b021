#include "backend/cpu/states.h"

#include <cstring>

#include "base/error.h"

namespace onebit::cpu {
namespace {

Memory allocate(const KvState& kv, const StateSizes& sizes) {
  KvMemory memory;
  memory.type = sizes.cache;
  memory.n_pages = sizes.n_pages;
  memory.n_head_kv = kv.n_head_kv;
  memory.d_head = kv.d_head;
  memory.keys = Pages(sizes.n_pages * kv.n_head_kv * memory.head_bytes());
  memory.values = Pages(sizes.n_pages * kv.n_head_kv * memory.head_bytes());
  return memory;
}

Memory allocate(const DeltaNetState& net, const StateSizes& sizes) {
  DeltaMemory memory;
  memory.shape = net;
  memory.n_slots = sizes.n_slots;
  memory.n_tape = sizes.n_tape;
  memory.memory = Pages(sizes.n_slots * memory.slot_floats() * 4);
  return memory;
}

Memory allocate(const RowsState& rows, const StateSizes& sizes) {
  return RowsMemory{sizes.n_rows, rows.width, Pages(sizes.n_rows * rows.width * 4)};
}

/// Parts one after another into `to`.
void gather(const std::vector<std::span<uint8_t>>& parts, std::span<uint8_t> to) {
  size_t at = 0;
  for (const auto& part : parts) {
    CHECK(at + part.size() <= to.size());
    std::memcpy(to.data() + at, part.data(), part.size());
    at += part.size();
  }
  CHECK(at == to.size());
}

void scatter(std::span<const uint8_t> from, const std::vector<std::span<uint8_t>>& parts) {
  size_t at = 0;
  for (const auto& part : parts) {
    CHECK(at + part.size() <= from.size());
    std::memcpy(part.data(), from.data() + at, part.size());
    at += part.size();
  }
  CHECK(at == from.size());
}

}  // namespace

States::States(const std::vector<const State*>& states, const StateSizes& sizes) : sizes_(sizes), order_(states) {
  for (const State* state : states) {
    memory_.emplace(state, std::visit([&](const auto& kind) { return allocate(kind, sizes); }, state->kind));
  }
}

void States::clear_slot(int32_t slot) {
  CHECK(slot >= 0 && slot < sizes_.n_slots);
  for (auto& [state, memory] : memory_) {
    if (auto* delta = std::get_if<DeltaMemory>(&memory)) {
      std::memset(delta->window(slot), 0, static_cast<size_t>(delta->slot_floats()) * 4);
    }
  }
}

void States::copy_slot(int32_t from, int32_t to) {
  CHECK(from >= 0 && from < sizes_.n_slots && to >= 0 && to < sizes_.n_slots);
  if (from == to) return;
  for (auto& [state, memory] : memory_) {
    if (auto* delta = std::get_if<DeltaMemory>(&memory)) {
      std::memcpy(delta->window(to), delta->window(from), static_cast<size_t>(delta->slot_floats()) * 4);
    }
  }
}

void States::copy_page(int32_t from, int32_t to) {
  CHECK(from >= 0 && from < sizes_.n_pages && to >= 0 && to < sizes_.n_pages);
  if (from == to) return;
  for (auto& [state, memory] : memory_) {
    if (auto* kv = std::get_if<KvMemory>(&memory)) {
      const auto bytes = static_cast<size_t>(kv->n_head_kv * kv->head_bytes());
      std::memcpy(kv->key_page(to, 0), kv->key_page(from, 0), bytes);
      std::memcpy(kv->value_page(to, 0), kv->value_page(from, 0), bytes);
    }
  }
}

std::vector<std::span<uint8_t>> States::slot_parts(int32_t slot) const {
  CHECK(slot >= 0 && slot < sizes_.n_slots);
  std::vector<std::span<uint8_t>> parts;
  for (const State* state : order_) {
    const auto* delta = std::get_if<DeltaMemory>(&memory_.at(state));
    if (!delta) continue;
    parts.emplace_back(reinterpret_cast<uint8_t*>(delta->window(slot)), static_cast<size_t>(delta->slot_floats()) * 4);
  }
  return parts;
}

std::vector<std::span<uint8_t>> States::page_parts(int32_t page) const {
  CHECK(page >= 0 && page < sizes_.n_pages);
  std::vector<std::span<uint8_t>> parts;
  for (const State* state : order_) {
    const auto* kv = std::get_if<KvMemory>(&memory_.at(state));
    if (!kv) continue;
    const auto bytes = static_cast<size_t>(kv->n_head_kv * kv->head_bytes());
    parts.emplace_back(kv->key_page(page, 0), bytes);
    parts.emplace_back(kv->value_page(page, 0), bytes);
  }
  return parts;
}

void States::read_slot(int32_t slot, std::span<uint8_t> to) const { gather(slot_parts(slot), to); }
void States::write_slot(int32_t slot, std::span<const uint8_t> from) { scatter(from, slot_parts(slot)); }
void States::read_page(int32_t page, std::span<uint8_t> to) const { gather(page_parts(page), to); }
void States::write_page(int32_t page, std::span<const uint8_t> from) { scatter(from, page_parts(page)); }

Memory* States::find(const State* state) {
  const auto found = memory_.find(state);
  return found == memory_.end() ? nullptr : &found->second;
}

}  // namespace onebit::cpu
