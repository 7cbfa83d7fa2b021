// Caches, recurrent slots and row buffers in this backend's layouts. In: state descriptions and pool sizes. Out: arrays
// that the steps read and write.
#pragma once

#include <map>
#include <memory>
#include <variant>

#include "backend/backend.h"
#include "backend/cpu/pages.h"

namespace onebit::cpu {

/// Keys are stored transposed inside a page, so that 16 positions are one vector and scores need no sum across lanes:
/// keys [n_pages, n_head_kv, d_head, kPageTokens], values [n_pages, n_head_kv, kPageTokens, d_head]. In a page of q8_0
/// the codes of a head are followed by its f16 scales: keys [d_head / 32, kPageTokens], values [kPageTokens, d_head /
/// 32].
struct KvMemory {
  CacheType type = CacheType::f16;
  int64_t n_pages = 0, n_head_kv = 0, d_head = 0;
  Pages keys, values;

  /// Bytes of one page of one head, keys or values.
  int64_t head_bytes() const { return cache_bytes(type, kPageTokens * d_head); }
  uint8_t* key_page(int64_t page, int64_t head) const { return keys.data() + (page * n_head_kv + head) * head_bytes(); }
  uint8_t* value_page(int64_t page, int64_t head) const {
    return values.data() + (page * n_head_kv + head) * head_bytes();
  }
};

/// Per slot: window [n_tap-1, n_channel], matrices [n_v_head, d_k, d_v] (transposed against plan/op.h, so that the
/// columns that share a key element are one vector), tape [n_tape, n_channel + 2 * n_v_head] of (u, beta, alpha).
struct DeltaMemory {
  DeltaNetState shape;
  int64_t n_slots = 0, n_tape = 0;
  Pages memory;

  int64_t window_floats() const { return (shape.n_tap - 1) * shape.n_channel; }
  int64_t matrix_floats() const { return shape.d_k * shape.d_v; }  // of one head
  int64_t tape_row_floats() const { return shape.n_channel + 2 * shape.n_v_head; }
  int64_t slot_floats() const {
    return window_floats() + shape.n_v_head * matrix_floats() + n_tape * tape_row_floats();
  }
  float* window(int64_t slot) const { return memory.as<float>() + slot * slot_floats(); }
  float* matrix(int64_t slot, int64_t head) const { return window(slot) + window_floats() + head * matrix_floats(); }
  float* tape(int64_t slot, int64_t row) const { return matrix(slot, shape.n_v_head) + row * tape_row_floats(); }
};

/// [n_rows, width]
struct RowsMemory {
  int64_t n_rows = 0, width = 0;
  Pages memory;
};

using Memory = std::variant<KvMemory, DeltaMemory, RowsMemory>;

class States : public StatePool {
 public:
  States(const std::vector<const State*>& states, const StateSizes& sizes);
  void clear_slot(int32_t slot) override;
  void copy_slot(int32_t from, int32_t to) override;
  void copy_page(int32_t from, int32_t to) override;
  void read_slot(int32_t slot, std::span<uint8_t> to) const override;
  void write_slot(int32_t slot, std::span<const uint8_t> from) override;
  void read_page(int32_t page, std::span<uint8_t> to) const override;
  void write_page(int32_t page, std::span<const uint8_t> from) override;

  /// The memory of one of this pool's states, nullptr for a state of another pool.
  Memory* find(const State* state);
  const StateSizes& sizes() const { return sizes_; }

 private:
  /// The memory of a slot, or a page, of each state in order.
  std::vector<std::span<uint8_t>> slot_parts(int32_t slot) const;
  std::vector<std::span<uint8_t>> page_parts(int32_t page) const;

  StateSizes sizes_;
  std::vector<const State*> order_;
  std::map<const State*, Memory> memory_;
};

}  // namespace onebit::cpu
