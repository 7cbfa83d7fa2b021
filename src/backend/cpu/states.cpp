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

}  // namespace

States::States(const std::vector<const State*>& states, const StateSizes& sizes) : sizes_(sizes) {
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

Memory* States::find(const State* state) {
  const auto found = memory_.find(state);
  return found == memory_.end() ? nullptr : &found->second;
}

}  // namespace onebit::cpu
