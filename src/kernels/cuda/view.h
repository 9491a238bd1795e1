// Rows of a matrix on the device, as kernels take them; the stride is in elements. Light: kernels include it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace deepinfer::kernels::cuda {

using Bf16 = __nv_bfloat16;

template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
  __host__ __device__ T* row(int64_t r) const { return data + r * stride; }
};

}  // namespace deepinfer::kernels::cuda
