// The cpu device: one pool of threads, one table of kernels, one store of weights; makes state pools and programs.
//
// A newcomer's way through this folder: layout.h (how everything lies in memory), kernels.h (the table of inner loops),
// matmul_avx512.cpp (the one that matters most), rows.inl and gemm.inl (the others, written once for every instruction
// set), step.h and steps_*.cpp (how each op is split over threads), program.cpp (binding and running a plan).
#include <fstream>

#include "backend/cpu/dispatch.h"
#include "backend/cpu/peaks.h"
#include "backend/cpu/program.h"
#include "backend/devices.h"
#include "backend/host_team.h"
#include "base/error.h"
#include "base/process_limits.h"

namespace onebit {
namespace {

/// "model name" of the first processor, "" where the system does not say.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "processor";
}

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options)
      : kernels_(cpu::choose_kernels(options.isa)), pool_(options.n_threads), weights_(kernels_, pool_) {
    info_.name = "cpu";
    info_.description = fmt::format("{}, {} threads, {}", processor_name(), pool_.size(), kernels_.isa);
    info_.memory_bytes = usable_memory();
  }

  const DeviceInfo& info() const override { return info_; }
  int64_t weight_bytes(const Weight& weight) const override { return cpu::loaded_bytes(weight); }
  void load(const Weight& weight) override { weights_.load(weight); }
  bool keeps_file_bytes(const Weight& weight) const override { return cpu::stays_in_file(weight); }

  bool keeps_cache(CacheType) const override { return true; }
  std::unique_ptr<StatePool> make_states(const std::vector<const State*>& states, const StateSizes& sizes) override {
    return std::make_unique<cpu::States>(states, sizes);
  }

  std::unique_ptr<Program> compile(const Plan& plan, std::span<StatePool* const> pools,
                                   const PlanLimits& limits) override {
    return std::make_unique<cpu::CpuProgram>(plan, pools, limits, kernels_, weights_, pool_, membership_);
  }

  std::shared_ptr<Team> make_team(std::span<const int> ordinals) override {
    return std::make_shared<HostTeam>(ordinals.size());
  }
  void join(Membership membership) override { membership_ = std::move(membership); }

  Peaks measure_peaks() override { return cpu::measure_peaks(pool_.size(), kernels_.isa); }

 private:
  const cpu::Kernels& kernels_;
  ThreadPool pool_;
  cpu::WeightStore weights_;
  Membership membership_;
  DeviceInfo info_;
};

}  // namespace

Probe probe_cpu() { return {true, ""}; }

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  if (options.n_threads < 0) fail(ErrorKind::usage, "threads: expected 0 or more, found {}", options.n_threads);
  return std::make_unique<CpuBackend>(options);
}

}  // namespace onebit
