// The one list of devices: name, probe, factory, in the order in which "auto" prefers them; and the names that users
// give, which may be several.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "backend/backend.h"
#include "backend/devices.h"
#include "backend/ref/ref.h"
#include "backend/split/split.h"
#include "backend/split/tensor.h"
#include "base/error.h"

namespace onebit {
namespace {

struct Device {
  std::string_view name;
  bool automatic;  // "auto" may pick it
  Probe (*probe)();
  std::unique_ptr<Backend> (*make)(const BackendOptions& options);
};

Probe probe_ref() { return {true, ""}; }
std::unique_ptr<Backend> make_ref(const BackendOptions&) { return make_ref_backend(); }

constexpr std::array kDevices = {
    Device{"cuda", true, probe_cuda, make_cuda_backend},
    Device{"rocm", true, probe_rocm, make_rocm_backend},
    Device{"vulkan", true, probe_vulkan, make_vulkan_backend},
    Device{"cpu", true, probe_cpu, make_cpu_backend},
    Device{"ref", false, probe_ref, make_ref},
};

/// "cpu, ref": the devices that this build on this machine can use.
std::string usable_names() {
  std::string names;
  for (const Device& device : kDevices) {
    if (device.probe().usable) names += fmt::format("{}{}", names.empty() ? "" : ", ", device.name);
  }
  return names;
}

const Device& automatic_device() {
  for (const Device& device : kDevices) {
    if (device.automatic && device.probe().usable) return device;
  }
  fail(ErrorKind::refused, "device auto: none found; usable here: {}", usable_names());
}

const Device& find_device(std::string_view name) {
  if (name == "auto") return automatic_device();
  std::string known = "auto";
  for (const Device& device : kDevices) {
    if (device.name == name) return device;
    known += fmt::format(", {}", device.name);
  }
  fail(ErrorKind::usage, "unknown device \"{}\"; known: {}", name, known);
}

/// A device that can be used, and which one of them; -1: its name had no number.
struct Choice {
  const Device* device;
  int n_device, ordinal;
};

/// "cuda1"
Choice choose(std::string_view text) {
  size_t n = text.size();
  while (n > 0 && std::isdigit(static_cast<unsigned char>(text[n - 1]))) --n;
  const Device& device = find_device(text.substr(0, n));
  const Probe probe = device.probe();
  if (!probe.usable) {
    fail(ErrorKind::refused, "device {}: {}; usable here: {}", device.name, probe.why, usable_names());
  }
  Choice choice{&device, probe.n_device, -1};
  if (n == text.size()) return choice;
  const auto [end, error] = std::from_chars(text.data() + n, text.data() + text.size(), choice.ordinal);
  // What is there once may be counted all the same: vulkan0, cpu1.
  if (error != std::errc() || (choice.ordinal >= probe.n_device && probe.n_device > 1)) {
    fail(ErrorKind::refused, "device {}: {}0 to {}{} are here", text, device.name, device.name, probe.n_device - 1);
  }
  choice.ordinal = std::min(choice.ordinal, probe.n_device - 1);
  return choice;
}

std::vector<Choice> choose_all(std::string_view names) {
  std::vector<Choice> choices;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    choices.push_back(choose(names.substr(at, end - at)));
    at = end + 1;
  }
  return choices;
}

}  // namespace

std::unique_ptr<Backend> make_backend(std::string_view names, const BackendOptions& options) {
  std::vector<Choice> choices = choose_all(names);
  const bool all = options.split == SplitMode::layer || options.split == SplitMode::tensor || !options.shares.empty();
  if (choices.size() == 1 && choices[0].ordinal < 0 && all && options.split != SplitMode::none) {
    choices.assign(static_cast<size_t>(choices[0].n_device), choices[0]);
    for (size_t i = 0; i < choices.size(); ++i) choices[i].ordinal = static_cast<int>(i);
  }
  if (options.split == SplitMode::none) choices.resize(1);
  std::vector<std::unique_ptr<Backend>> devices;
  std::vector<int> ordinals;
  for (const Choice& choice : choices) {
    BackendOptions own = options;
    if (choice.ordinal >= 0) own.ordinal = choice.ordinal;
    ordinals.push_back(own.ordinal);
    devices.push_back(choice.device->make(own));
  }
  if (devices.size() == 1 && options.shares.size() <= 1) return std::move(devices[0]);
  if (options.split == SplitMode::tensor) return make_tensor_backend(std::move(devices), ordinals);
  return make_split_backend(std::move(devices), options.shares);
}

int count_devices(std::string_view names) {
  const std::vector<Choice> choices = choose_all(names);
  return choices.size() > 1 || choices[0].ordinal >= 0 ? static_cast<int>(choices.size()) : choices[0].n_device;
}

void check_cache(const Backend& backend, const std::vector<const State*>& states, CacheType type) {
  if (!backend.keeps_cache(type)) {
    refuse("--cache-type q8_0: only the cpu keeps keys and values that way, device {} as f16 or f32",
           backend.info().name);
  }
  const int64_t block = type_info(BlockType::q8_0).block_elems;
  for (const State* state : states) {
    const auto* kv = std::get_if<KvState>(&state->kind);
    if (type != CacheType::q8_0 || !kv || kv->d_head % block == 0) continue;
    refuse("--cache-type q8_0: {} has heads of {} elements, expected a multiple of {}; use f16", state->name,
           kv->d_head, block);
  }
}

}  // namespace onebit
