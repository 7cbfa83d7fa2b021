// The Backend that CUDA and HIP share: one device, one stream, a store of weights.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/gpu/bind.h"

namespace onebit::gpu {

class GpuBackend : public Backend {
 public:
  /// Uses device `ordinal`; `name` is the one on the command line ("cuda", "rocm").
  GpuBackend(const char* name, int ordinal);

  const DeviceInfo& info() const override { return info_; }
  int64_t weight_bytes(const Weight& weight) const override { return device_weight_bytes(weight); }
  void load(const Weight& weight) override;
  bool keeps_file_bytes(const Weight&) const override { return false; }
  std::unique_ptr<StatePool> make_states(const std::vector<const State*>& states, const StateSizes& sizes) override;
  std::unique_ptr<Program> compile(const Plan& plan, std::span<StatePool* const> pools,
                                   const PlanLimits& limits) override;
  std::shared_ptr<Team> make_team(std::span<const int> ordinals) override;
  void join(Membership membership) override { membership_ = std::move(membership); }
  /// Of memory, by copying it.
  Peaks measure_peaks() override;

 private:
  DeviceInfo info_;
  Chip chip_;
  std::shared_ptr<Stream> stream_;
  std::unique_ptr<WeightStore> weights_;
  Membership membership_;
};

}  // namespace onebit::gpu
