#include "base/thread_pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/process_limits.h"

namespace onebit {
namespace {

// How long a thread spins before it sleeps. With the cores for itself it may spin for 150 us: longer than any wait
// inside a decoded token, and much cheaper than waking up. On a shared machine that collapses (measured with 4
// processes a core: 88 tokens/s with 300 spins, 30 with 2,000, 14 with 10,000), because the thread that everyone waits
// for doesn't get the core that they keep busy; and yielding collapses too, since each yield hands a whole time slice
// to someone else, while a sleeper that is woken gets its core back at once. Which of the two it is shows in how often
// the caller is preempted: a few times a second on an idle machine, thousands of times beside other busy processes.
constexpr int kSpinsAlone = 10000, kSpinsShared = 300;
constexpr double kSharedRate = 100;     // preemptions a second
constexpr double kWatchSeconds = 0.02;  // between looks

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void ThreadPool::Signal::raise() {
  value.fetch_add(1);
  if (sleepers.load() > 0) syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void ThreadPool::Signal::wait_while(uint32_t old, const std::atomic<int>& spins) {
  for (int i = spins.load(std::memory_order_relaxed); i > 0; --i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  // Sequentially consistent with raise(): either it sees the sleeper, or the sleeper sees the new value.
  sleepers.fetch_add(1);
  while (value.load() == old) syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
  sleepers.fetch_sub(1);
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads > 0 ? n_threads : usable_cores()), spins_(kSpinsShared) {
  for (int thread = 1; thread < n_threads_; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  run_.raise();
  for (std::thread& thread : threads_) thread.join();
}

/// Adapts the spinning to whether other processes want these cores. Called with the callers' lock held.
void ThreadPool::watch_neighbours() {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - watched_).count();
  if (seconds < kWatchSeconds) return;
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return;
  const auto preemptions = static_cast<double>(usage.ru_nivcsw - preemptions_);
  spins_.store(preemptions / seconds > kSharedRate ? kSpinsShared : kSpinsAlone, std::memory_order_relaxed);
  preemptions_ = usage.ru_nivcsw;
  watched_ = now;
}

void ThreadPool::run_job(Job job) {
  const std::lock_guard lock(callers_);
  watch_neighbours();
  job_ = job;
  run_.raise();
  job.call(job.context, 0);
  barrier();
}

void ThreadPool::serve(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    run_.wait_while(seen, spins_);
    if (stopping_) return;
    job_.call(job_.context, thread);
    barrier();
  }
}

bool ThreadPool::arrive_last() {
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) != n_threads_ - 1) return false;
  arrived_.store(0, std::memory_order_relaxed);
  all_arrived_.raise();
  return true;
}

}  // namespace onebit
