// The GPU's stream. Kernels of kernels/cuda take their cudaStream_t from it.
#pragma once

#include "base/thread_pool.h"
#include "device/cuda/check.h"
#include "device/cuda/uploads.h"
#include "device/device.h"

namespace deepinfer::cuda {

// Small copies from ordinary host memory pass through a pinned ring, so that the source may change as soon as copy()
// returns and the copy itself is asynchronous. A piece of the ring is used again when the stream has passed it. The
// smallest are collected, and one kernel brings them to their places before whatever the stream is given next: a step
// of the model has some twenty of them.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(int num_threads);
  ~CudaStream() override;

  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, int value, int64_t bytes) override;
  void synchronize() override;
  ThreadPool& pool() override { return pool_; }
  bool begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  // For the next work; what was collected goes before it.
  cudaStream_t handle() {
    flush();
    return stream_;
  }

 private:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;
  static constexpr int kPieces = 4;
  static constexpr int64_t kMostCollected = 16 << 10;  // bytes of a copy that is collected
  void* stage(const void* from, int64_t bytes);
  void flush();

  ThreadPool pool_;
  cudaStream_t stream_ = nullptr;
  std::byte* ring_ = nullptr;  // [kPieces][kPieceBytes]
  cudaEvent_t passed_[kPieces] = {};
  int piece_ = 0;
  int64_t used_ = 0;  // of the current piece
  Uploads collected_;
};

// Kernels of the CUDA backend receive CUDA streams only.
inline cudaStream_t handle_of(Stream& stream) {
  return static_cast<CudaStream&>(stream).handle();
}

}  // namespace deepinfer::cuda
