// The one list of devices: name, probe, factory, in the order in which "auto" prefers them.
#include <fmt/format.h>

#include <array>

#include "backend/backend.h"
#include "backend/devices.h"
#include "backend/ref/ref.h"
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

std::unique_ptr<Backend> make_automatic(const BackendOptions& options) {
  for (const Device& device : kDevices) {
    if (device.automatic && device.probe().usable) return device.make(options);
  }
  fail(ErrorKind::refused, "device auto: none found; usable here: {}", usable_names());
}

}  // namespace

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  if (name == "auto") return make_automatic(options);
  std::string known = "auto";
  for (const Device& device : kDevices) {
    if (device.name != name) {
      known += fmt::format(", {}", device.name);
      continue;
    }
    const Probe probe = device.probe();
    if (probe.usable) return device.make(options);
    fail(ErrorKind::refused, "device {}: {}; usable here: {}", name, probe.why, usable_names());
  }
  fail(ErrorKind::usage, "unknown device \"{}\"; known: {}", name, known);
}

}  // namespace onebit
