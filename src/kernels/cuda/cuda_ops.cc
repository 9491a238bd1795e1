#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::kernels {
namespace cuda {

CudaOps::CudaOps(Numerics numerics) : numerics_(numerics) {
  DI_CHECK(numerics == Numerics::kVendor || numerics == Numerics::kFast, "numerics {} on the CUDA backend",
           numerics_name(numerics));
}

std::string CudaOps::description() const {
  return fmt::format("cuda, {}", numerics_name(numerics_));
}

int64_t CudaOps::workspace_bytes(const WorkspaceShape& s) const {
  return std::max({linear_scratch_bytes(s), moe_scratch_bytes(s), mhc_scratch_bytes(s), select_scratch_bytes(s)});
}

}  // namespace cuda

std::unique_ptr<Ops> make_cuda_ops(Numerics numerics) {
  return std::make_unique<cuda::CudaOps>(numerics);
}

}  // namespace deepinfer::kernels
