// The CPU's stream: a fork-join pool. Kernels of kernels/ref and kernels/cpu take their threads from it.
#pragma once

#include "base/thread_pool.h"
#include "device/device.h"

namespace deepinfer {

class CpuStream final : public Stream {
 public:
  explicit CpuStream(int num_threads) : pool_(num_threads > 0 ? num_threads : available_threads()) {}

  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, int value, int64_t bytes) override;
  void synchronize() override {}
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_;
};

// Kernels of the CPU backends receive CPU streams only.
inline ThreadPool& pool_of(Stream& stream) {
  return static_cast<CpuStream&>(stream).pool();
}

}  // namespace deepinfer
