// A fixed set of threads that walk one piece of work together. In: a body to run on every thread. Out: its effects.
// The caller is thread 0 and works too; the others sleep between runs, after a short spin.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace onebit {

class ThreadPool {
 public:
  /// `n_threads` includes the caller; 0 takes usable_cores().
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  /// Runs body(thread) once on every thread, the caller being thread 0, and returns when all are done. The body must
  /// not throw. Runs of several callers take turns.
  template <class Body>
  void run(Body&& body) {
    run_job(
        {[](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); }, &body});
  }

  /// Inside a body: returns when every thread has arrived. Everything written before it is visible after it.
  void barrier() {
    barrier([] { return false; });
  }
  /// The same; the time of waiting is spent in calls of idle(), which must be short, until one returns false.
  template <class Idle>
  void barrier(Idle idle) {
    if (n_threads_ == 1) return;
    const uint32_t generation = all_arrived_.value.load(std::memory_order_relaxed);
    if (arrive_last()) return;
    while (all_arrived_.value.load(std::memory_order_acquire) == generation && idle()) {
    }
    all_arrived_.wait_while(generation, spins_);
  }

 private:
  struct Job {
    void (*call)(void* context, int thread) = nullptr;
    void* context = nullptr;
  };

  /// A counter that threads wait on: they spin shortly, then sleep in the kernel. On a cache line of its own, because
  /// threads that spin on it must not slow down writers of its neighbours.
  struct alignas(64) Signal {
    std::atomic<uint32_t> value{0};
    std::atomic<uint32_t> sleepers{0};

    void raise();
    /// Returns when the value is no longer `old`.
    void wait_while(uint32_t old, const std::atomic<int>& spins);
  };

  /// Counts the caller in; the last one lets all go and gets true.
  bool arrive_last();
  void run_job(Job job);
  void serve(int thread);
  void watch_neighbours();

  int n_threads_;
  std::vector<std::thread> threads_;
  std::mutex callers_;
  Job job_;
  bool stopping_ = false;
  std::atomic<int> spins_;  // how long threads spin before they sleep
  std::chrono::steady_clock::time_point watched_;
  int64_t preemptions_ = 0;                  // of the caller, when last watched
  Signal run_;                               // raised to start a run
  Signal all_arrived_;                       // raised by the last thread at the barrier
  alignas(64) std::atomic<int> arrived_{0};  // threads at the barrier
};

}  // namespace onebit
