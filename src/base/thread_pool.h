// Fork-join pool: one caller, n - 1 workers, all run the same function.
//
//   run(f)    calls f(0) .. f(n - 1), f(0) on the caller's thread, and returns when all are done
//   share(f)  the same for an f that takes its work piece by piece: a worker that is not there before the caller has
//   run
//             out of pieces is left out, so that a machine with other work to do costs a piece's time and not a turn of
//             the system's scheduler
//   Workers spin for a few microseconds between jobs (decode steps come one after the other), then sleep.
//
// One owner thread calls; nested calls are not allowed. Work must be cut so that its result does not depend on n, nor
// on who does it.
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
    start(f, Workers::kAll);
  }
  template <typename F>
  void share(F&& f) {
    start(f, Workers::kThoseInTime);
  }

  // f(begin, end) over contiguous pieces of [0, count), as many as threads; piece borders are multiples of `quantum`.
  template <typename F>
  void split(int64_t count, int64_t quantum, F&& f) {
    const int64_t units = (count + quantum - 1) / quantum;
    if (units <= 1 || size() == 1) {
      if (count > 0) f(int64_t{0}, count);
      return;
    }
    each(size(), [&](int64_t piece) {
      const int64_t begin = units * piece / size() * quantum, end = units * (piece + 1) / size() * quantum;
      if (begin < end) f(begin, end < count ? end : count);
    });
  }

  // f(i) for i in [0, count), handed out one by one: for pieces of unequal cost.
  template <typename F>
  void each(int64_t count, F&& f) {
    each_on(count, [&](int, int64_t i) { f(i); });
  }

  // The same with the thread's number: f(thread, i). A thread begins with its own part of the range, so that what it
  // wrote in one job is in its cache in the next, and then helps the others.
  template <typename F>
  void each_on(int64_t count, F&& f) {
    if (count <= 1 || size() == 1) {
      for (int64_t i = 0; i < count; ++i) f(0, i);
      return;
    }
    const int parts = num_parts();
    for (int p = 0; p < parts; ++p) parts_[p].next.store(count * p / parts, std::memory_order_relaxed);
    share([&](int thread) {
      const int own = thread * parts / size();
      for (int k = 0; k < parts; ++k) {
        const int part = own + k < parts ? own + k : own + k - parts;
        const int64_t end = count * (part + 1) / parts;
        auto& next = parts_[part].next;
        if (next.load(std::memory_order_relaxed) >= end) continue;
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < end;) f(thread, i);
      }
    });
  }
  // How far from i the index lies that each_on is likely to give the same thread next.
  int stride() const { return (size() + num_parts() - 1) / num_parts(); }

 private:
  using Call = void (*)(void*, int);
  enum class Workers { kAll, kThoseInTime };

  template <typename F>
  void start(F& f, Workers workers) {
    dispatch([](void* body, int thread) { (*static_cast<F*>(body))(thread); },
             const_cast<void*>(static_cast<const void*>(&f)), workers);
  }
  void dispatch(Call call, void* body, Workers workers);
  void await(int num_workers) const;
  void work(int thread);

  // A job: its number, whether workers may still join it, and how many have.
  static constexpr uint64_t kJoined = 0x7fff, kOpen = 0x8000, kNumberShift = 16;

  // Where the next piece of a part of each_on's range begins. Few, since a thread looks at all of them.
  static constexpr int kMaxParts = 8;
  int num_parts() const { return size() < kMaxParts ? size() : kMaxParts; }
  struct alignas(64) Part {
    std::atomic<int64_t> next{0};
  };
  Part parts_[kMaxParts];

  Call call_ = nullptr;  // of the open job; read by those who have joined it
  void* body_ = nullptr;
  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<int> finished_{0};  // of those who joined
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards the sleep of workers on wake_
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Threads that this process may use: the affinity mask, cut by a cgroup CPU quota.
int available_threads();

}  // namespace deepinfer
