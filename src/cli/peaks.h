// What this machine's cores can do at best: the rates that `1bit bench` holds its own against.
#pragma once

namespace onebit {

struct Peaks {
  double gbps = 0;       // 1e9 bytes a second read from memory
  double int8_tops = 0;  // 1e12 8-bit multiplies and adds a second; 0 where the processor has no such instruction
};

/// Takes about a second with `n_threads` threads.
Peaks measure_peaks(int n_threads);

}  // namespace onebit
