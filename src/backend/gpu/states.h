// Caches, recurrent slots and row buffers on the device. In: state descriptions and pool sizes. Out: memory that the
// kernels read and write; everything starts at zero.
#pragma once

#include <map>
#include <memory>
#include <variant>

#include "backend/backend.h"
#include "backend/gpu/memory.h"
#include "backend/gpu/state_memory.h"

namespace onebit::gpu {

using Memory = std::variant<KvMemory, DeltaMemory, RowsMemory>;

class States : public StatePool {
 public:
  States(const std::vector<const State*>& states, const StateSizes& sizes, std::shared_ptr<Stream> stream);
  ~States() override;
  void clear_slot(int32_t slot) override;
  void copy_slot(int32_t from, int32_t to) override;
  void copy_page(int32_t from, int32_t to) override;
  void read_slot(int32_t slot, std::span<uint8_t> to) const override;
  void write_slot(int32_t slot, std::span<const uint8_t> from) override;
  void read_page(int32_t page, std::span<uint8_t> to) const override;
  void write_page(int32_t page, std::span<const uint8_t> from) override;

  /// The memory of one of this pool's states, nullptr for a state of another pool.
  const Memory* find(const State* state) const;
  const StateSizes& sizes() const { return sizes_; }

 private:
  /// Some bytes of one state on the device.
  struct Piece {
    uint8_t* data;
    int64_t bytes;
  };
  Memory allocate(const State& state);
  uint8_t* take(int64_t bytes);
  std::vector<Piece> slot_pieces(int32_t slot) const;
  std::vector<Piece> page_pieces(int32_t page) const;
  void read(const std::vector<Piece>& pieces, std::span<uint8_t> to) const;
  void write(const std::vector<Piece>& pieces, std::span<const uint8_t> from);

  StateSizes sizes_;
  std::shared_ptr<Stream> stream_;   // shared with the backend: pools may outlive it
  std::vector<const State*> order_;  // as make_states() was given them
  std::map<const State*, Memory> memory_;
  std::vector<DeviceMemory> owned_;
};

}  // namespace onebit::gpu
