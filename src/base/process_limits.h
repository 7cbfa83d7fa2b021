// What the system grants this process: processors (affinity, control groups) and memory (what is free, control groups).
#pragma once

#include <cstdint>
#include <string>

namespace onebit {

/// Cores this process may use: physical cores in its affinity mask, at most its control groups' CPU quota, rounded up.
/// At least 1. `root` is put before the paths that are read (/proc/self/cgroup, /sys/fs/cgroup, /sys/devices).
int usable_cores(const std::string& root = "");

/// Bytes this process may take without swapping, page caches counted as free: what the system has available, at most
/// the room in its control groups.
int64_t usable_memory(const std::string& root = "");

}  // namespace onebit
