#include "plan/layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace onebit {
namespace {

size_t index(Value v) { return static_cast<size_t>(v.id); }

int64_t weight_bytes(const Step& step) {
  int64_t bytes = 0;
  for (const Weight* weight : step.weights) bytes += static_cast<int64_t>(weight->data.size());
  return bytes;
}

/// Bytes of weights that only the plans behind the first use.
int64_t bytes_of_others(std::span<const Plan* const> plans) {
  std::set<const Weight*> seen;
  for (const Weight* weight : plans[0]->weights()) seen.insert(weight);
  int64_t bytes = 0;
  for (const Plan* plan : plans.subspan(1)) {
    for (const Weight* weight : plan->weights()) {
      if (seen.insert(weight).second) bytes += static_cast<int64_t>(weight->data.size());
    }
  }
  return bytes;
}

/// For each step whether a plan may be cut behind it: one value is read later, and it is f32.
std::vector<bool> find_cuts(const Plan& plan) {
  const size_t n_step = plan.steps().size();
  std::vector<size_t> last(plan.values().size());
  for (size_t s = 0; s < n_step; ++s) {
    for (Value v : plan.steps()[s].in) last[index(v)] = s;
  }
  std::vector<bool> cuts(n_step);
  std::vector<Value> alive;
  for (size_t s = 0; s < n_step; ++s) {
    for (Value v : plan.steps()[s].out) alive.push_back(v);
    std::erase_if(alive, [&](Value v) { return last[index(v)] <= s; });
    cuts[s] = alive.size() == 1 && plan.info(alive[0]).type == Dtype::f32;
  }
  return cuts;
}

}  // namespace

Layout::Layout(std::span<const Plan* const> plans, std::span<const double> shares)
    : n_device_(static_cast<int>(shares.size())) {
  CHECK(!plans.empty() && n_device_ > 0);
  place_layers(*plans[0], bytes_of_others(plans), shares);
  for (const Plan* plan : plans) place_rest(*plan);
}

void Layout::place_layers(const Plan& plan, int64_t other_bytes, std::span<const double> shares) {
  const std::vector<bool> cuts = find_cuts(plan);
  std::vector<double> until;  // bytes up to and with each step
  double total = 0;
  for (const Step& step : plan.steps()) until.push_back(total += static_cast<double>(weight_bytes(step)));
  total += static_cast<double>(other_bytes);
  const double all_shares = std::accumulate(shares.begin(), shares.end(), 0.0);
  double wanted = 0;
  size_t begin = 0;
  for (int device = 0; device < n_device_; ++device) {
    size_t end = plan.steps().size();
    if (device + 1 < n_device_) {
      wanted += total * shares[static_cast<size_t>(device)] / all_shares;
      const auto distance = [&](size_t e) { return std::abs((e > 0 ? until[e - 1] : 0) - wanted); };
      end = begin;
      for (size_t e = begin + 1; e <= cuts.size(); ++e) {
        if (cuts[e - 1] && distance(e) < distance(end)) end = e;
      }
    }
    for (; begin < end; ++begin) {
      const Step& step = plan.steps()[begin];
      for (const Weight* weight : step.weights) weights_[weight].insert(device);
      if (step.state && !std::holds_alternative<RowsState>(step.state->kind)) states_.emplace(step.state, device);
    }
  }
}

void Layout::place_rest(const Plan& plan) {
  std::vector<int> made_on(plan.values().size());
  for (const Step& step : plan.steps()) {
    int least = 0;
    for (Value v : step.in) least = std::max(least, made_on[index(v)]);
    const int device = device_for(step, least);
    for (const Weight* weight : step.weights) weights_[weight].insert(device);
    if (step.state) states_.emplace(step.state, device);
    for (Value v : step.out) made_on[index(v)] = device;
  }
}

int Layout::device_of(const State& state) const {
  const auto found = states_.find(&state);
  return found == states_.end() ? n_device_ - 1 : found->second;
}

const std::set<int>& Layout::holders(const Weight& weight) const {
  static const std::set<int> kNone;
  const auto found = weights_.find(&weight);
  return found == weights_.end() ? kNone : found->second;
}

/// Where a step runs whose inputs are there on device `least`.
int Layout::device_for(const Step& step, int least) const {
  if (step.state) return device_of(*step.state);
  if (step.weights.empty()) return least;
  for (int device = least; device < n_device_; ++device) {
    const auto held = [&](const Weight* weight) { return holders(*weight).contains(device); };
    if (std::all_of(step.weights.begin(), step.weights.end(), held)) return device;
  }
  return n_device_ - 1;
}

std::vector<int> Layout::devices_of(const Plan& plan) const {
  const size_t n_step = plan.steps().size();
  std::vector<int> devices(n_step), made_on(plan.values().size()), first_read(plan.values().size(), n_device_);
  for (size_t s = 0; s < n_step; ++s) {
    const Step& step = plan.steps()[s];
    int least = 0;
    for (Value v : step.in) least = std::max(least, made_on[index(v)]);
    devices[s] = device_for(step, least);
    CHECK(devices[s] >= least);
    for (const Weight* weight : step.weights) CHECK(holders(*weight).contains(devices[s]));
    for (Value v : step.in) first_read[index(v)] = std::min(first_read[index(v)], devices[s]);
    for (Value v : step.out) made_on[index(v)] = devices[s];
  }
  // Quantised rows don't travel: they are made where they are read.
  for (size_t s = 0; s < n_step; ++s) {
    const Step& step = plan.steps()[s];
    if (step.op == Op::quantize)
      devices[s] = std::max(devices[s], std::min(first_read[index(step.out[0])], n_device_ - 1));
  }
  return devices;
}

DividedPlan Layout::divide(const Plan& plan) const {
  const std::vector<int> devices = devices_of(plan);
  std::vector<std::vector<size_t>> steps(static_cast<size_t>(n_device_));
  std::vector<std::vector<Value>> entries(static_cast<size_t>(n_device_));
  std::vector<int> made_on(plan.values().size());
  for (size_t s = 0; s < devices.size(); ++s) {
    const Step& step = plan.steps()[s];
    steps[static_cast<size_t>(devices[s])].push_back(s);
    std::vector<Value>& from_others = entries[static_cast<size_t>(devices[s])];
    for (Value v : step.in) {
      const auto same = [v](Value other) { return other.id == v.id; };
      if (made_on[index(v)] != devices[s] && std::none_of(from_others.begin(), from_others.end(), same)) {
        from_others.push_back(v);
      }
    }
    for (Value v : step.out) made_on[index(v)] = devices[s];
  }

  DividedPlan divided;
  for (size_t d = 0; d < steps.size(); ++d) divided.parts.push_back({plan.some(steps[d], entries[d]), {}});
  const auto part_of = [&](Value v) -> Plan& { return divided.parts[static_cast<size_t>(made_on[index(v)])].plan; };
  for (const PlanOutput& output : plan.outputs()) {
    Plan& part = part_of(output.value);
    divided.outputs.push_back({made_on[index(output.value)], static_cast<int>(part.outputs().size())});
    part.output(output.name, output.value);
  }
  for (size_t d = 0; d < steps.size(); ++d) {
    for (Value v : entries[d]) {
      Plan& part = part_of(v);
      const std::string name = "to others: " + std::to_string(v.id);
      if (part.find_output(name) < 0) part.output(name, v);
      divided.parts[d].sources.push_back({made_on[index(v)], part.find_output(name)});
    }
  }
  return divided;
}

}  // namespace onebit
