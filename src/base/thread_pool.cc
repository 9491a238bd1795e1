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
    job_.fetch_add(uint64_t{1} << kNumberShift);
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::dispatch(Call call, void* body, Workers workers) {
  if (workers_.empty()) {
    call(body, 0);
    return;
  }
  call_ = call;
  body_ = body;
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t number = (job_.load(std::memory_order_relaxed) >> kNumberShift) + 1;
  job_.store(number << kNumberShift | kOpen, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    {
      std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }
  call(body, 0);
  if (workers == Workers::kAll) await(static_cast<int>(workers_.size()));
  const uint64_t closed = job_.fetch_and(~kOpen, std::memory_order_seq_cst);
  await(static_cast<int>(closed & kJoined));
}

void ThreadPool::await(int num_workers) const {
  for (int spins = 0; finished_.load(std::memory_order_acquire) != num_workers; ++spins) {
    if (spins < kSpinsBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;  // number of the last job looked at
  auto is_new = [&](std::memory_order order) { return job_.load(order) >> kNumberShift != seen; };
  while (true) {
    for (int spins = 0; !is_new(std::memory_order_acquire) && spins < kSpins; ++spins) relax();
    if (!is_new(std::memory_order_acquire)) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return is_new(std::memory_order_seq_cst); });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    uint64_t job = job_.load(std::memory_order_seq_cst);
    seen = job >> kNumberShift;
    if (stop_.load()) return;  // after the number was taken: the destructor's own number would else pass for a seen job
    bool has_joined = false;
    while (!has_joined && (job & kOpen) != 0 && job >> kNumberShift == seen) {
      has_joined = job_.compare_exchange_weak(job, job + 1, std::memory_order_acq_rel, std::memory_order_acquire);
    }
    if (!has_joined) continue;
    call_(body_, thread);
    finished_.fetch_add(1, std::memory_order_release);
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
