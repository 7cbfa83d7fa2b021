// What this machine's cores can do at best: the rates that `1bit bench` holds its own against.
#pragma once

#include "backend/backend.h"

namespace onebit::cpu {

/// Takes about a second with `n_threads` threads.
Peaks measure_peaks(int n_threads);

}  // namespace onebit::cpu
