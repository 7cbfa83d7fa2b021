// The state memory of the reference backend: caches, recurrent slots with their tape, and buffers of rows.
// In: state descriptions and pool sizes. Out: plain arrays that the ops read and write.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "backend/backend.h"

namespace onebit::ref {

/// Rows of [n_head_kv * d_head], one per cache cell; cell = page * kPageTokens + position % kPageTokens.
class CacheRows {
 public:
  CacheRows(CacheType type, int64_t n_cells, int64_t width);
  int64_t n_cells() const { return n_cells_; }
  void write(int64_t cell, const float* row);
  /// A cell's row, widened.
  void read(int64_t cell, float* row) const;
  void copy(int64_t from, int64_t to, int64_t n_cells);
  /// The stored bytes of some cells.
  std::span<uint8_t> bytes(int64_t cell, int64_t n_cells);
  std::span<const uint8_t> bytes(int64_t cell, int64_t n_cells) const {
    return const_cast<CacheRows*>(this)->bytes(cell, n_cells);
  }

 private:
  int64_t row_bytes() const { return cache_bytes(type_, width_); }

  CacheType type_;
  int64_t n_cells_, width_;
  std::vector<float> f32_;
  std::vector<uint16_t> f16_;
  std::vector<uint8_t> q8_;  // rows of blocks
};

struct KvMemory {
  CacheRows k, v;
};

/// A row of inputs of a delta net, as the tape keeps it.
struct TapeRow {
  std::vector<float> u;            // [n_channel]
  std::vector<float> beta, alpha;  // [n_v_head]
};

/// One sequence's recurrent state.
struct DeltaSlot {
  std::vector<float> window;  // [n_tap-1, n_channel], oldest row first
  std::vector<float> matrix;  // [n_v_head, d_v, d_k]
};

struct DeltaMemory {
  std::vector<DeltaSlot> slots;             // [n_slots]
  std::vector<std::vector<TapeRow>> tapes;  // [n_slots], each as long as what the last verify wrote
  int64_t n_tape = 0;                       // most rows a tape may have
};

struct RowsMemory {
  int64_t n_rows = 0, width = 0;
  std::vector<float> data;  // [n_rows, width]
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
  StateSizes sizes_;
  std::vector<const State*> order_;
  std::map<const State*, Memory> memory_;
};

}  // namespace onebit::ref
