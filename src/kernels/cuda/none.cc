// Stands for kernels/cuda in programs built without CUDA, where make_cuda_device fails first.
#include "base/check.h"
#include "kernels/ops.h"

namespace deepinfer::kernels {

std::unique_ptr<Ops> make_cuda_ops(Numerics) {
  DI_CHECK(false, "this program was built without CUDA");
}

}  // namespace deepinfer::kernels
