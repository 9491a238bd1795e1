// The check of every CUDA call. Light: kernels include it.
#pragma once

#include <cuda_runtime_api.h>

namespace deepinfer::cuda {

// Throws DeviceError, naming the call.
void check(cudaError_t status, const char* what);

}  // namespace deepinfer::cuda
