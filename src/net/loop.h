// The event loop: one thread that owns all sockets and all state of the service, and a few workers for long
// computations.
//
//   Everything given to the loop runs on the thread that called run(), one piece after the other, so what only the loop
//   touches needs no lock. post() and offload() may be called from any thread, the rest only before run() or on the
//   loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace deepinfer::net {

class Loop {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Loop(int num_workers);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs until stop().
  void run();
  void stop();

  void post(std::function<void()> work);
  // `work` on a worker, then `done` on the loop. Neither may throw.
  void offload(std::function<void()> work, std::function<void()> done);
  // Calls `work` once, not before `when`.
  void at(Clock::time_point when, std::function<void()> work);
  // Calls `work` every `period` until the loop ends.
  void every(std::chrono::milliseconds period, std::function<void()> work);
  // Calls `work` with the signal's number each time one of them arrives.
  void on_signals(const std::vector<int>& signals, std::function<void(int)> work);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::net
