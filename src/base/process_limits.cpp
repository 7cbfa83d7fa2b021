// Control groups come in two versions, which a system may have side by side. /proc/self/cgroup has a line for each tree
// that the process is in, "0::PATH" for version 2 and "ID:CONTROLLER,...:PATH" for version 1, and a limit holds for
// everything below the group that has it.
#include "base/process_limits.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <vector>

namespace onebit {
namespace {

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {  // the system refuses sets smaller than its own
    cpu_set_t* const set = CPU_ALLOC(most);
    const size_t bytes = CPU_ALLOC_SIZE(most);
    CPU_ZERO_S(bytes, set);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < most; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (known) break;
  }
  return cpus;
}

/// Physical cores among the allowed CPUs.
size_t count_cores(const std::string& root) {
  std::set<std::string> cores;
  for (const int cpu : allowed_cpus()) {
    std::ifstream file(fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", root, cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return cores.size();
}

/// Folders of the groups with a controller that this process is in, outer ones included; some may not exist.
std::vector<std::string> group_folders(const std::string& root, const std::string& controller) {
  const std::string mounts = root + "/sys/fs/cgroup";
  std::vector<std::string> folders;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    const std::string trees[] = {unified ? mounts : mounts + "/" + controllers,
                                 mounts + "/" + (unified ? "unified" : controller)};
    for (std::string path = line.substr(second + 1); true; path.resize(path.rfind('/'))) {
      for (const std::string& tree : trees) folders.push_back(tree + path);
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return folders;
}

/// The number in a file, `otherwise` when it holds none ("max") or doesn't exist.
double number_in(const std::string& path, double otherwise) {
  std::ifstream file(path);
  double number = 0;
  return file >> number ? number : otherwise;
}

/// The sum of some lines "KEY NUMBER" of a file.
double sum_of(const std::string& path, const std::set<std::string>& keys) {
  std::ifstream file(path);
  std::string key;
  double sum = 0;
  for (double number = 0; file >> key >> number;) sum += keys.count(key) ? number : 0;
  return sum;
}

/// Cores' worth of time that a group grants; infinite when it sets no limit.
double quota_in(const std::string& folder) {
  double quota = -1, period = 0;
  std::ifstream both(folder + "/cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
  if (!(both >> quota >> period)) {
    quota = number_in(folder + "/cpu.cfs_quota_us", -1);
    period = number_in(folder + "/cpu.cfs_period_us", 0);
  }
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

/// Bytes that a group has left, its page cache counted as free; infinite when it sets no limit.
double room_in(const std::string& folder) {
  const std::string statistics = folder + "/memory.stat";
  if (const double limit = number_in(folder + "/memory.max", INFINITY); std::isfinite(limit)) {
    return limit - number_in(folder + "/memory.current", 0) + sum_of(statistics, {"active_file", "inactive_file"});
  }
  const double limit = number_in(folder + "/memory.limit_in_bytes", INFINITY);
  return limit - number_in(folder + "/memory.usage_in_bytes", 0) +
         sum_of(statistics, {"total_active_file", "total_inactive_file"});
}

double available_memory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("MemAvailable:")) return std::stod(line.substr(13)) * 1024;
  }
  return static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

int usable_cores(const std::string& root) {
  auto cores = static_cast<double>(count_cores(root));
  for (const std::string& folder : group_folders(root, "cpu")) cores = std::min(cores, std::ceil(quota_in(folder)));
  return std::max(1, static_cast<int>(cores));
}

int64_t usable_memory(const std::string& root) {
  double bytes = available_memory(root);
  for (const std::string& folder : group_folders(root, "memory")) bytes = std::min(bytes, room_in(folder));
  return std::max<int64_t>(0, static_cast<int64_t>(bytes));
}

}  // namespace onebit
