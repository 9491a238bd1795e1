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
