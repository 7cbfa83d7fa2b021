// The thread pool: every thread runs every body once, barriers order memory, runs of several callers take turns.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/process_limits.h"

namespace onebit {
namespace {

TEST(ThreadPool, RunsTheBodyOnceOnEveryThread) {
  ThreadPool pool(3);
  EXPECT_EQ(pool.size(), 3);
  for (int run = 0; run < 2000; ++run) {
    std::vector<int> visits(3, 0);
    pool.run([&](int thread) { ++visits[static_cast<size_t>(thread)]; });
    ASSERT_EQ(visits, (std::vector<int>{1, 1, 1}));
  }
}

TEST(ThreadPool, BarrierShowsWhatOthersWroteBefore) {
  ThreadPool pool(4);
  std::vector<int64_t> value(4, 0), sums(4, 0);
  pool.run([&](int thread) {
    const auto mine = static_cast<size_t>(thread);
    for (int64_t round = 1; round <= 500; ++round) {
      value[mine] = round * (thread + 1);
      pool.barrier();
      sums[mine] += std::accumulate(value.begin(), value.end(), int64_t{0});
      pool.barrier();
    }
  });
  for (const int64_t sum : sums) EXPECT_EQ(sum, 10 * (500 * 501 / 2));
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(2);
  int64_t count = 0;  // not atomic: two runs at once would be seen by the thread sanitizer, and usually lose counts
  const auto caller = [&] {
    for (int run = 0; run < 1000; ++run) {
      pool.run([&](int thread) {
        if (thread == 1) ++count;
      });
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  EXPECT_EQ(count, 2000);
}

TEST(ThreadPool, OneThreadNeedsNoOthers) {
  ThreadPool pool(1);
  int visits = 0;
  pool.run([&](int thread) {
    pool.barrier();
    visits += thread + 1;
  });
  EXPECT_EQ(visits, 1);
}

TEST(ThreadPool, DefaultsToTheCoresOfThisProcess) {
  EXPECT_EQ(ThreadPool(0).size(), usable_cores());
}

}  // namespace
}  // namespace onebit
