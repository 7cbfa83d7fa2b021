// The devices that tests can make here: ref always, the CPU with every instruction set of this build and machine, and
// a GPU where the build has its backend and the machine has one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"

namespace onebit::test {

struct Device {
  std::string name, isa;

  std::unique_ptr<Backend> make() const { return make_backend(name, {.n_threads = 2, .isa = isa}); }
  std::string label() const { return name + isa; }
  /// Products of many rows carry codes times scales in f16, not integers and f32 scales.
  bool halves() const { return name == "cuda"; }
};

inline std::vector<Device> test_devices() {
  std::vector<Device> usable;
  for (const Device& device :
       {Device{"ref", ""}, Device{"cpu", "portable"}, Device{"cpu", "avx2"}, Device{"cpu", "avxvnni"},
        Device{"cpu", "avx512"}, Device{"cpu", "amx"}, Device{"cpu", "dotprod"}, Device{"cuda", ""}}) {
    try {
      device.make();
      usable.push_back(device);
    } catch (const Error&) {  // not built in, or not for this machine
    }
  }
  return usable;
}

}  // namespace onebit::test
