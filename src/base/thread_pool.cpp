#include "base/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

namespace onebit {
namespace {

// Waiting goes through three stages. Spinning answers within nanoseconds, which the hundreds of short steps of a
// decoded token need; yielding lets other processes of a shared machine run (pools that only spin collapse there: the
// thread that everyone waits for does not get a core); sleeping costs nothing but takes tens of microseconds to wake
// from.
constexpr int kSpins = 2000;  // about 30 us
constexpr int kYields = 500;  // about 0.3 ms on an idle machine

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns when `value` is no longer `old`.
void wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  for (int i = 0; i < kYields; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

/// One of the allowed CPUs of every physical core.
std::vector<int> one_cpu_per_core() {
  std::set<std::string> seen;
  std::vector<int> cpus;
  for (int cpu : allowed_cpus()) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    if (seen.insert(siblings).second) cpus.push_back(cpu);
  }
  return cpus;
}

/// This process's folder in the control group hierarchy, version 2; "" when there is none.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
}

/// Cores' worth of time that a quota file grants, infinite when it can't be read or sets no limit. Version 2 has
/// "quota period" or "max period" in one file; version 1 has two files.
double quota_in(const std::string& folder) {
  double quota = -1, period = 0;
  if (std::ifstream both(folder + "/cpu.max"); both) {
    both >> quota >> period;
    if (!both) return INFINITY;
  } else if (std::ifstream first(folder + "/cpu.cfs_quota_us"), second(folder + "/cpu.cfs_period_us");
             first && second) {
    first >> quota;
    second >> period;
  }
  return quota > 0 && period > 0 ? quota / period : INFINITY;
}

}  // namespace

int usable_cores() {
  const auto cores = static_cast<double>(one_cpu_per_core().size());
  double quota = quota_in("/sys/fs/cgroup/cpu");  // version 1
  for (std::string folder = control_group(); true; folder.resize(folder.rfind('/'))) {
    quota = std::min(quota, quota_in("/sys/fs/cgroup" + folder));
    if (folder.rfind('/') == std::string::npos) break;
  }
  return std::max(1, static_cast<int>(std::min(cores, std::ceil(quota))));
}

ThreadPool::ThreadPool(int n_threads, bool pin) : n_threads_(n_threads > 0 ? n_threads : usable_cores()) {
  const std::vector<int> cpus = pin ? one_cpu_per_core() : std::vector<int>{};
  for (int thread = 1; thread < n_threads_; ++thread) {
    threads_.emplace_back([this, thread] { serve(thread); });
    if (cpus.empty()) continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[static_cast<size_t>(thread) % cpus.size()], &set);
    pthread_setaffinity_np(threads_.back().native_handle(), sizeof set, &set);  // a refusal only costs speed
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_job(Job job) {
  const std::lock_guard lock(callers_);
  job_ = job;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  job.call(job.context, 0);
  barrier();
}

void ThreadPool::serve(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(run_, seen);
    if (stopping_) return;
    job_.call(job_.context, thread);
    barrier();
  }
}

void ThreadPool::barrier() {
  if (n_threads_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n_threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    generation_.notify_all();
  } else {
    wait_while(generation_, generation);
  }
}

}  // namespace onebit
