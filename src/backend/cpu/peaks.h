// What this machine's cores do at best at the moment: the rates that `1bit bench` holds its own against.
#pragma once

#include <string_view>

#include "backend/backend.h"

namespace onebit::cpu {

/// Takes half a second with `n_threads` threads. `isa`: what products use (Kernels::isa).
Peaks measure_peaks(int n_threads, std::string_view isa);

}  // namespace onebit::cpu
