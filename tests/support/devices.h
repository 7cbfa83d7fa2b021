// The devices that tests can make here: ref always, and the CPU with every instruction set of this build and machine.
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
};

inline std::vector<Device> test_devices() {
  std::vector<Device> usable;
  for (const Device& device :
       {Device{"ref", ""}, Device{"cpu", "portable"}, Device{"cpu", "avx2"}, Device{"cpu", "avx512"}}) {
    try {
      device.make();
      usable.push_back(device);
    } catch (const Error&) {  // not built in, or not for this machine
    }
  }
  return usable;
}

}  // namespace onebit::test
