// Fork-join pool: one caller, n - 1 workers, all run the same function.
//
//   run(f) calls f(0) .. f(n - 1), f(0) on the caller's thread, and returns when all are done.
//   Workers spin for a few microseconds between jobs (decode steps come one after the other), then sleep.
//
// One owner thread calls run(); nested calls are not allowed. Work must be cut so that its result does not depend on n.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace deepinfer {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  template <typename F>
  void run(F&& f) {
    using Body = std::remove_reference_t<F>;
    dispatch([](void* body, int thread) { (*static_cast<Body*>(body))(thread); },
             const_cast<void*>(static_cast<const void*>(&f)));
  }

  // f(begin, end) over contiguous pieces of [0, count), one a thread; piece borders are multiples of `quantum`.
  template <typename F>
  void split(int64_t count, int64_t quantum, F&& f) {
    int64_t units = (count + quantum - 1) / quantum;
    if (units <= 1 || size() == 1) {
      if (count > 0) f(int64_t{0}, count);
      return;
    }
    run([&](int thread) {
      int64_t begin = units * thread / size() * quantum, end = units * (thread + 1) / size() * quantum;
      if (end > count) end = count;
      if (begin < end) f(begin, end);
    });
  }

  // f(i) for i in [0, count), handed out one by one: for pieces of unequal cost.
  template <typename F>
  void each(int64_t count, F&& f) {
    if (count <= 1 || size() == 1) {
      for (int64_t i = 0; i < count; ++i) f(i);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(i);
    });
  }

 private:
  using Call = void (*)(void*, int);
  void dispatch(Call call, void* body);
  void work(int thread);

  Call call_ = nullptr;
  void* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> pending_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards the sleep of workers on wake_
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Threads that this process may use: the affinity mask, cut by a cgroup CPU quota.
int available_threads();

}  // namespace deepinfer
