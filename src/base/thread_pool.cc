#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace deepinfer {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// About 50 us of pauses: longer than the gap between two kernels of a decode step, short enough to cost nothing when
// idle.
constexpr int kSpins = 2000;
// The caller waits for the slowest worker; past this it yields, so that an oversubscribed machine still makes progress.
constexpr int kSpinsBeforeYield = 4000;

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::dispatch(Call call, void* body) {
  if (workers_.empty()) {
    call(body, 0);
    return;
  }
  call_ = call;
  body_ = body;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }
  call(body, 0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinsBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen && spins < kSpins) {
      relax();
      ++spins;
    }
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_seq_cst) != seen; });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    ++seen;
    if (stop_.load()) return;
    call_(body_, thread);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = std::max(1, CPU_COUNT(&set));
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    count = std::min(count, std::max(1, static_cast<int>(std::ceil(std::stod(quota) / period))));
  }
  return count;
}

}  // namespace deepinfer
