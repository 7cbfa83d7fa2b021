#include "backend/split/states.h"

#include "base/error.h"

namespace onebit::split {
namespace {

/// Gives each part that has a pool the next of its bytes.
template <class Parts, class Bytes, class Use>
void divide(Parts& parts, std::span<Bytes> bytes, int64_t States::Part::*size, Use use) {
  for (auto& part : parts) {
    if (!part.pool) continue;
    const auto n = static_cast<size_t>(part.*size);
    CHECK(n <= bytes.size());
    use(*part.pool, bytes.first(n));
    bytes = bytes.subspan(n);
  }
  CHECK(bytes.empty());
}

}  // namespace

States::Part States::part(std::unique_ptr<StatePool> pool, const std::vector<const State*>& states, StateSizes sizes) {
  Part made{std::move(pool), 0, 0};
  StateSizes slot = sizes, page = sizes;
  slot.n_slots = 1, slot.n_pages = 0, slot.n_rows = 0;
  page.n_pages = 1, page.n_slots = 0, page.n_rows = 0;
  for (const State* state : states) {
    made.slot_bytes += state_bytes(*state, slot);
    made.page_bytes += state_bytes(*state, page);
  }
  return made;
}

void States::clear_slot(int32_t slot) {
  for (const Part& part : parts_) {
    if (part.pool) part.pool->clear_slot(slot);
  }
}

void States::copy_slot(int32_t from, int32_t to) {
  for (const Part& part : parts_) {
    if (part.pool) part.pool->copy_slot(from, to);
  }
}

void States::copy_page(int32_t from, int32_t to) {
  for (const Part& part : parts_) {
    if (part.pool) part.pool->copy_page(from, to);
  }
}

void States::read_slot(int32_t slot, std::span<uint8_t> to) const {
  divide(parts_, to, &Part::slot_bytes, [slot](StatePool& pool, auto bytes) { pool.read_slot(slot, bytes); });
}
void States::write_slot(int32_t slot, std::span<const uint8_t> from) {
  divide(parts_, from, &Part::slot_bytes, [slot](StatePool& pool, auto bytes) { pool.write_slot(slot, bytes); });
}
void States::read_page(int32_t page, std::span<uint8_t> to) const {
  divide(parts_, to, &Part::page_bytes, [page](StatePool& pool, auto bytes) { pool.read_page(page, bytes); });
}
void States::write_page(int32_t page, std::span<const uint8_t> from) {
  divide(parts_, from, &Part::page_bytes, [page](StatePool& pool, auto bytes) { pool.write_page(page, bytes); });
}

std::vector<StatePool*> pools_of(std::span<StatePool* const> pools, size_t device) {
  std::vector<StatePool*> own;
  for (StatePool* pool : pools) {
    auto* states = dynamic_cast<States*>(pool);
    CHECK(states);
    if (StatePool* part = states->on(device)) own.push_back(part);
  }
  return own;
}

}  // namespace onebit::split
