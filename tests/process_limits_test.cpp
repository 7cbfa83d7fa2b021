// What a process is granted: affinity masks are set for real, control groups are read from file trees made here.
#include "base/process_limits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <thread>

#include "support/temp_dir.h"

namespace onebit {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// Files of a machine with 64 GiB available.
class Machine {
 public:
  explicit Machine(const std::string& groups) {
    put("/proc/self/cgroup", groups);
    put("/proc/meminfo", fmt::format("MemTotal: {} kB\nMemFree: 1024 kB\nMemAvailable:   {} kB\n", 96 << 20, 64 << 20));
  }
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return dir_.path().string(); }

 private:
  test::TempDir dir_;
};

/// Runs body() on a thread that may run on the first `n` CPUs of this process's mask; false where there are fewer.
template <class Body>
bool on_cpus(int n, Body body) {
  cpu_set_t all, some;
  EXPECT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&some);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&some) < n; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &some);
  }
  std::thread([&] {
    EXPECT_EQ(sched_setaffinity(0, sizeof some, &some), 0);
    body();
  }).join();
  return CPU_COUNT(&some) == n;
}

TEST(UsableCores, FollowTheAffinityMask) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_TRUE(on_cpus(1, [] { EXPECT_EQ(usable_cores(), 1); }));
  const Machine machine("");  // knows of no siblings
  const bool two = on_cpus(2, [&] { EXPECT_EQ(usable_cores(machine.root()), 2); });
  EXPECT_EQ(two, std::thread::hardware_concurrency() > 1);
}

TEST(UsableCores, ThreadsOfACoreCountOnce) {
  Machine machine("");
  for (int cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF); ++cpu) {
    machine.put(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu), "0-4095\n");
  }
  EXPECT_EQ(usable_cores(machine.root()), 1);
}

// Quotas below one core, so that the tests hold on a machine of one core as well as on one of a hundred.
TEST(UsableCores, FollowTheQuotaOfVersion2) {
  Machine machine("0::/user/job\n");
  const int all = usable_cores(machine.root());
  machine.put("/sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_cores(machine.root()), all);
  machine.put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(usable_cores(machine.root()), std::min(all, 2));
  machine.put("/sys/fs/cgroup/user/cpu.max", "30000 100000\n");  // of an outer group
  EXPECT_EQ(usable_cores(machine.root()), 1);
  machine.put("/sys/fs/cgroup/user/cpu.max", fmt::format("{} 100000\n", all * 100000));
  machine.put("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_cores(machine.root()), all);
}

TEST(UsableCores, FollowTheQuotaOfVersion1) {
  for (const std::string tree : {"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"}) {
    Machine machine("5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n0::/\n");
    const int all = usable_cores(machine.root());
    machine.put(tree + "/job/cpu.cfs_quota_us", "-1\n");
    machine.put(tree + "/job/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(usable_cores(machine.root()), all);
    machine.put(tree + "/job/cpu.cfs_quota_us", "100000\n");
    EXPECT_EQ(usable_cores(machine.root()), 1);
  }
}

TEST(UsableCores, OfAContainerThatSeesOnlyItsOwnGroup) {
  Machine machine("4:cpu,cpuacct:/docker/0123\n");  // the path is the host's; the mount begins at the container's
  machine.put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  machine.put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_cores(machine.root()), 1);
}

TEST(UsableMemory, IsWhatTheSystemHas) {
  EXPECT_GT(usable_memory(), 0);
  EXPECT_EQ(usable_memory(Machine("").root()), 64 * kGiB);
}

TEST(UsableMemory, IsTheRoomInGroupsOfVersion2) {
  Machine machine("0::/user/job\n");
  machine.put("/sys/fs/cgroup/user/job/memory.max", "max\n");
  EXPECT_EQ(usable_memory(machine.root()), 64 * kGiB);
  machine.put("/sys/fs/cgroup/user/memory.max", fmt::format("{}\n", 8 * kGiB));
  machine.put("/sys/fs/cgroup/user/memory.current", fmt::format("{}\n", 5 * kGiB));
  EXPECT_EQ(usable_memory(machine.root()), 3 * kGiB);
  machine.put("/sys/fs/cgroup/user/memory.stat",
              fmt::format("anon {}\nfile {}\ninactive_file {}\nactive_file {}\n", kGiB, 4 * kGiB, 3 * kGiB, kGiB));
  EXPECT_EQ(usable_memory(machine.root()), 7 * kGiB);
  machine.put("/sys/fs/cgroup/user/memory.current", fmt::format("{}\n", 20 * kGiB));
  EXPECT_EQ(usable_memory(machine.root()), 0);
}

TEST(UsableMemory, IsTheRoomInGroupsOfVersion1) {
  Machine machine("4:memory:/job\n0::/\n");
  machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", fmt::format("{}\n", 2 * kGiB));
  machine.put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", fmt::format("{}\n", kGiB));
  machine.put("/sys/fs/cgroup/memory/job/memory.stat", fmt::format("cache 5\ntotal_inactive_file {}\n", kGiB / 2));
  EXPECT_EQ(usable_memory(machine.root()), kGiB * 3 / 2);
}

}  // namespace
}  // namespace onebit
