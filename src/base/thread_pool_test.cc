#include "base/thread_pool.h"

#include <atomic>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ThreadPool, EveryThreadRunsOnceAJob) {
  for (int n : {1, 2, 5}) {
    ThreadPool pool(n);
    for (int job = 0; job < 1000; ++job) {
      std::vector<std::atomic<int>> count(n);
      pool.run([&](int t) { count[t]++; });
      for (auto& c : count) ASSERT_EQ(c.load(), 1);
    }
  }
}

TEST(ThreadPool, SplitCoversTheRangeOnceAtMultiplesOfTheQuantum) {
  ThreadPool pool(3);
  for (int64_t count : {0, 1, 31, 32, 33, 1000}) {
    std::vector<std::atomic<int>> hits(count);
    pool.split(count, 32, [&](int64_t b, int64_t e) {
      EXPECT_EQ(b % 32, 0);
      for (int64_t i = b; i < e; ++i) hits[i]++;
    });
    for (auto& h : hits) ASSERT_EQ(h.load(), 1);
  }
}

TEST(ThreadPool, EachHandsOutEveryIndexOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> hits(1000);
  pool.each(1000, [&](int64_t i) { hits[i]++; });
  for (auto& h : hits) ASSERT_EQ(h.load(), 1);
}

// Pieces are done once each whoever comes, and a job that is over is not touched by those who come late.
TEST(ThreadPool, SharedWorkIsDoneOnceWithOrWithoutLateWorkers) {
  ThreadPool pool(8);  // more than most machines have: some are always late
  for (int job = 0; job < 3000; ++job) {
    std::vector<std::atomic<int>> hits(16);
    std::atomic<int> next{0}, inside{0};
    pool.share([&](int) {
      inside++;
      for (int i; (i = next.fetch_add(1)) < 16;) hits[static_cast<size_t>(i)]++;
      inside--;
    });
    ASSERT_EQ(inside.load(), 0);
    for (auto& h : hits) ASSERT_EQ(h.load(), 1);
  }
}

// A worker that is late for the last job may meet the end of the pool at any point of its loop.
TEST(ThreadPool, EndsWhereverItsWorkersAre) {
  std::atomic<int> sum{0};
  for (int i = 0; i < 3000; ++i) {
    ThreadPool pool(4);
    pool.share([&](int thread) { sum += thread == 0; });
  }
  EXPECT_EQ(sum.load(), 3000);
}

TEST(ThreadPool, WakesWorkersThatFellAsleep) {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.run([&](int) { sum++; });
  }
  EXPECT_EQ(sum.load(), 6);
}

}  // namespace
}  // namespace deepinfer
