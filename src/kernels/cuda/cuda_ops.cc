#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/check.h"

namespace deepinfer::kernels {
namespace cuda {

CudaOps::CudaOps(Numerics numerics) : numerics_(numerics) {
  DI_CHECK(numerics == Numerics::kVendor || numerics == Numerics::kFast, "numerics {} on the CUDA backend",
           numerics_name(numerics));
}

std::string CudaOps::description() const {
  return fmt::format("cuda, {}", numerics_name(numerics_));
}

SideStream::~SideStream() {
  if (stream_ == nullptr) return;
  cudaEventDestroy(forked_);
  cudaEventDestroy(joined_);
  cudaStreamDestroy(stream_);
}

cudaStream_t SideStream::fork(cudaStream_t main) {
  using deepinfer::cuda::check;
  if (stream_ == nullptr) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "side stream");
    check(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "event");
    check(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming), "event");
  }
  check(cudaEventRecord(forked_, main), "fork");
  check(cudaStreamWaitEvent(stream_, forked_, 0), "fork");
  return stream_;
}

void SideStream::join(cudaStream_t main) {
  deepinfer::cuda::check(cudaEventRecord(joined_, stream_), "join");
  deepinfer::cuda::check(cudaStreamWaitEvent(main, joined_, 0), "join");
}

int64_t CudaOps::workspace_bytes(const WorkspaceShape& s) const {
  return std::max({linear_scratch_bytes(s), moe_scratch_bytes(s), mhc_scratch_bytes(s), select_scratch_bytes(s)});
}

}  // namespace cuda

std::unique_ptr<Ops> make_cuda_ops(Numerics numerics) {
  return std::make_unique<cuda::CudaOps>(numerics);
}

}  // namespace deepinfer::kernels
