// State memory on several devices: each holds the states of its layers, and all of them number slots and pages alike.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"

namespace onebit::split {

class States : public StatePool {
 public:
  struct Part {
    std::unique_ptr<StatePool> pool;         // null: the device has none of the states
    int64_t slot_bytes = 0, page_bytes = 0;  // as files keep them
  };
  static Part part(std::unique_ptr<StatePool> pool, const std::vector<const State*>& states, StateSizes sizes);

  explicit States(std::vector<Part> parts) : parts_(std::move(parts)) {}
  StatePool* on(size_t device) const { return parts_[device].pool.get(); }

  void clear_slot(int32_t slot) override;
  void copy_slot(int32_t from, int32_t to) override;
  void copy_page(int32_t from, int32_t to) override;
  /// Bytes of the devices one after another: layers are on them in order.
  void read_slot(int32_t slot, std::span<uint8_t> to) const override;
  void write_slot(int32_t slot, std::span<const uint8_t> from) override;
  void read_page(int32_t page, std::span<uint8_t> to) const override;
  void write_page(int32_t page, std::span<const uint8_t> from) override;

 private:
  std::vector<Part> parts_;  // by device
};

/// What a device has of some pools.
std::vector<StatePool*> pools_of(std::span<StatePool* const> pools, size_t device);

}  // namespace onebit::split
