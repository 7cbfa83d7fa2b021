#include "backend/split/split.h"

#include <algorithm>
#include <optional>

#include "backend/split/program.h"
#include "backend/split/states.h"
#include "base/error.h"
#include "plan/layout.h"

namespace onebit {
namespace {

using Devices = std::vector<std::unique_ptr<Backend>>;

std::vector<double> check_shares(const Devices& devices, std::vector<double> shares) {
  if (shares.empty()) {
    for (const auto& device : devices) shares.push_back(static_cast<double>(device->info().memory_bytes));
    if (std::any_of(shares.begin(), shares.end(), [](double s) { return s <= 0; })) shares.assign(shares.size(), 1);
  }
  if (shares.size() != devices.size()) {
    fail(ErrorKind::usage, "--tensor-split: expected a share for each of {} devices, found {}", devices.size(),
         shares.size());
  }
  const bool negative = std::any_of(shares.begin(), shares.end(), [](double s) { return !(s >= 0); });
  if (negative || std::all_of(shares.begin(), shares.end(), [](double s) { return s == 0; })) {
    fail(ErrorKind::usage, "--tensor-split: expected shares of 0 or more, not all of them 0");
  }
  return shares;
}

class SplitBackend : public Backend {
 public:
  SplitBackend(Devices devices, std::vector<double> shares)
      : devices_(std::move(devices)), shares_(check_shares(devices_, std::move(shares))), info_(info_of(devices_)) {}

  const DeviceInfo& info() const override { return info_; }
  void place(std::span<const Plan* const> plans) override { layout_.emplace(plans, shares_); }

  int64_t weight_bytes(const Weight& weight) const override {
    int64_t bytes = 0;
    for (const int d : layout().holders(weight)) bytes += device(d).weight_bytes(weight);
    return bytes;
  }
  void load(const Weight& weight) override {
    for (const int d : layout().holders(weight)) device(d).load(weight);
  }
  bool keeps_file_bytes(const Weight& weight) const override {
    const std::set<int>& holders = layout().holders(weight);
    return std::any_of(holders.begin(), holders.end(), [&](int d) { return device(d).keeps_file_bytes(weight); });
  }

  bool keeps_cache(CacheType type) const override {
    return std::all_of(devices_.begin(), devices_.end(), [&](const auto& device) { return device->keeps_cache(type); });
  }
  std::unique_ptr<StatePool> make_states(const std::vector<const State*>& states, const StateSizes& sizes) override {
    std::vector<std::vector<const State*>> by_device(devices_.size());
    for (const State* state : states) by_device[static_cast<size_t>(layout().device_of(*state))].push_back(state);
    std::vector<split::States::Part> parts;
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (by_device[d].empty()) {
        parts.emplace_back();
      } else {
        parts.push_back(split::States::part(devices_[d]->make_states(by_device[d], sizes), by_device[d], sizes));
      }
    }
    return std::make_unique<split::States>(std::move(parts));
  }

  std::unique_ptr<Program> compile(const Plan& plan, std::span<StatePool* const> pools,
                                   const PlanLimits& limits) override {
    DividedPlan divided = layout().divide(plan);
    std::vector<std::unique_ptr<Program>> programs;
    for (size_t d = 0; d < devices_.size(); ++d) {
      const Plan& part = divided.parts[d].plan;
      const std::vector<StatePool*> own = split::pools_of(pools, d);
      programs.push_back(part.steps().empty() ? nullptr : devices_[d]->compile(part, own, limits));
    }
    return std::make_unique<split::SplitProgram>(std::move(divided), std::move(programs), limits);
  }

  /// A batch is on one device at a time.
  Peaks measure_peaks() override { return devices_[0]->measure_peaks(); }

 private:
  const Layout& layout() const {
    CHECK(layout_);
    return *layout_;
  }
  Backend& device(int d) const { return *devices_[static_cast<size_t>(d)]; }

  Devices devices_;
  std::vector<double> shares_;
  DeviceInfo info_;
  std::optional<Layout> layout_;
};

}  // namespace

DeviceInfo info_of(const Devices& devices) {
  DeviceInfo all;
  std::vector<std::string> names;
  for (const auto& device : devices) {
    const DeviceInfo& one = device->info();
    const bool known = std::find(names.begin(), names.end(), one.name) != names.end();
    if (!known) names.push_back(one.name);
    if (!known) all.name += (all.name.empty() ? "" : "+") + one.name;
    // The host's is there once.
    if (!known || one.name != "cpu") all.memory_bytes += one.memory_bytes;
    all.description += (all.description.empty() ? "" : "; ") + one.description;
  }
  return all;
}

std::unique_ptr<Backend> make_split_backend(Devices devices, std::vector<double> shares) {
  return std::make_unique<SplitBackend>(std::move(devices), std::move(shares));
}

}  // namespace onebit
