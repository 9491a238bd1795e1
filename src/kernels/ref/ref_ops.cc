#include "kernels/ref/ref_ops.h"

namespace deepinfer::kernels {

std::unique_ptr<Ops> make_ref_ops(Numerics numerics) {
  return std::make_unique<ref::RefOps>(numerics);
}

}  // namespace deepinfer::kernels
