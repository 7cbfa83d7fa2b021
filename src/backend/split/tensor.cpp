#include "backend/split/tensor.h"

#include <algorithm>
#include <deque>
#include <exception>

#include "backend/split/split.h"
#include "backend/split/states.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "plan/shard.h"

namespace onebit {
namespace {

using Devices = std::vector<std::unique_ptr<Backend>>;

/// State memory in parts. How its bytes lie is no single device's, so they don't go into files.
class TensorStates : public StatePool {
 public:
  explicit TensorStates(std::vector<split::States::Part> parts) : parts_(std::move(parts)) {}
  split::States& parts() { return parts_; }
  void clear_slot(int32_t slot) override { parts_.clear_slot(slot); }
  void copy_slot(int32_t from, int32_t to) override { parts_.copy_slot(from, to); }
  void copy_page(int32_t from, int32_t to) override { parts_.copy_page(from, to); }

 private:
  split::States parts_;
};

/// A program on each device, all run at the same time; results are the first one's.
class TensorProgram : public Program {
 public:
  TensorProgram(std::vector<std::unique_ptr<Program>> programs, ThreadPool& threads)
      : programs_(std::move(programs)), tickets_(programs_.size()), errors_(programs_.size()), threads_(threads) {}

  Ticket submit(const Batch& batch) override {
    if (programs_.size() == 1) {
      tickets_[0] = programs_[0]->submit(batch);
      return ++last_;
    }
    threads_.run([&](int thread) {
      const auto i = static_cast<size_t>(thread);
      try {
        tickets_[i] = programs_[i]->submit(batch);
      } catch (...) {
        errors_[i] = std::current_exception();
      }
    });
    for (std::exception_ptr& error : errors_) {
      if (error) std::rethrow_exception(std::exchange(error, nullptr));
    }
    return ++last_;
  }
  void wait(Ticket ticket) override {
    CHECK(ticket <= last_);
    for (size_t i = 0; i < programs_.size(); ++i) programs_[i]->wait(tickets_[i]);
  }
  void read(int index, int64_t row, std::span<float> to) override { programs_[0]->read(index, row, to); }
  void read(int index, int64_t row, std::span<int32_t> to) override { programs_[0]->read(index, row, to); }
  void write(int index, std::span<const float> rows) override { programs_[0]->write(index, rows); }
  void measure_steps() override {
    for (const auto& program : programs_) program->measure_steps();
  }
  std::vector<StepTime> step_times() const override { return programs_[0]->step_times(); }

 private:
  std::vector<std::unique_ptr<Program>> programs_;  // by device; one only: a plan that is not divided
  std::vector<Ticket> tickets_;
  std::vector<std::exception_ptr> errors_;
  ThreadPool& threads_;
  Ticket last_ = 0;
};

class TensorBackend : public Backend {
 public:
  TensorBackend(Devices devices, const std::vector<int>& ordinals)
      : devices_(std::move(devices)), info_(info_of(devices_)), threads_(static_cast<int>(devices_.size())) {
    const std::shared_ptr<Team> team = devices_[0]->make_team(ordinals);
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (devices_[d]->info().name != devices_[0]->info().name) {
        fail(ErrorKind::refused, "--split-mode tensor: devices of one kind are wanted, found {}", info_.name);
      }
      devices_[d]->join({team, static_cast<int>(d)});
      shards_.emplace_back(static_cast<int>(d), static_cast<int>(devices_.size()));
    }
  }

  const DeviceInfo& info() const override { return info_; }

  /// The first plan is divided; all others run on the first device.
  void place(std::span<const Plan* const> plans) override {
    for (Shard& shard : shards_) shard.divide(*plans[0]);
    for (const Plan* plan : plans.subspan(1)) {
      for (const Weight* weight : plan->weights()) others_.insert(weight);
    }
  }

  int64_t weight_bytes(const Weight& weight) const override {
    int64_t bytes = 0;
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (const WeightPart* part = shards_[d].part(weight)) bytes += devices_[d]->weight_bytes(part->weight);
      if (whole_on(d, weight)) bytes += devices_[d]->weight_bytes(weight);
    }
    return bytes;
  }
  void load(const Weight& weight) override {
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (shards_[d].part(weight)) load_part(d, weight);
      if (whole_on(d, weight)) devices_[d]->load(weight);
    }
  }
  bool keeps_file_bytes(const Weight& weight) const override {
    bool keeps = false;
    for (size_t d = 0; d < devices_.size(); ++d)
      keeps = keeps || (whole_on(d, weight) && devices_[d]->keeps_file_bytes(weight));
    return keeps;
  }

  bool keeps_cache(CacheType type) const override {
    return std::all_of(devices_.begin(), devices_.end(), [&](const auto& device) { return device->keeps_cache(type); });
  }
  std::unique_ptr<StatePool> make_states(const std::vector<const State*>& states, const StateSizes& sizes) override {
    std::vector<split::States::Part> parts;
    for (size_t d = 0; d < devices_.size(); ++d) {
      std::vector<const State*> own;
      for (const State* state : states) {
        const State* part = shards_[d].part(*state);
        if (part) own.push_back(part);
        if (!part && d == 0) own.push_back(state);
      }
      if (own.empty()) {
        parts.emplace_back();
      } else {
        parts.push_back(split::States::part(devices_[d]->make_states(own, sizes), own, sizes));
      }
    }
    return std::make_unique<TensorStates>(std::move(parts));
  }

  std::unique_ptr<Program> compile(const Plan& plan, std::span<StatePool* const> pools,
                                   const PlanLimits& limits) override {
    std::vector<StatePool*> parts;
    for (StatePool* pool : pools) {
      auto* states = dynamic_cast<TensorStates*>(pool);
      CHECK(states);
      parts.push_back(&states->parts());
    }
    std::vector<std::unique_ptr<Program>> programs;
    for (size_t d = 0; d < (divided(plan) ? devices_.size() : 1); ++d) {
      const Plan own = divided(plan) ? shards_[d].divide(plan) : plan;
      programs.push_back(devices_[d]->compile(own, split::pools_of(parts, d), limits));
    }
    return std::make_unique<TensorProgram>(std::move(programs), threads_);
  }

  Peaks measure_peaks() override {
    Peaks peaks = devices_[0]->measure_peaks();
    peaks.gbps *= static_cast<double>(devices_.size());
    peaks.int8_tops *= static_cast<double>(devices_.size());
    return peaks;
  }

 private:
  bool whole_on(size_t d, const Weight& weight) const {
    return shards_[d].uses_whole(weight) || (d == 0 && others_.contains(&weight));
  }
  /// Plans that were not divided when they were placed have states of their own.
  bool divided(const Plan& plan) const {
    for (const Step& step : plan.steps()) {
      if (step.state && shards_[0].part(*step.state)) return true;
    }
    return false;
  }
  void load_part(size_t d, const Weight& weight) {
    const WeightPart& part = *shards_[d].part(weight);
    std::vector<uint8_t> bytes = part.bytes();
    // The device knows the part by its address; what it reads in place later must stay.
    Weight& loaded = shards_[d].bytes_of(weight, bytes);
    devices_[d]->load(loaded);
    if (devices_[d]->keeps_file_bytes(loaded)) {
      kept_.push_back(std::move(bytes));
    } else {
      shards_[d].bytes_of(weight, {});
    }
  }

  Devices devices_;
  DeviceInfo info_;
  ThreadPool threads_;
  std::deque<Shard> shards_;        // by device
  std::set<const Weight*> others_;  // of plans that are not divided
  std::deque<std::vector<uint8_t>> kept_;
};

}  // namespace

std::unique_ptr<Backend> make_tensor_backend(Devices devices, const std::vector<int>& ordinals) {
  return std::make_unique<TensorBackend>(std::move(devices), ordinals);
}

}  // namespace onebit
