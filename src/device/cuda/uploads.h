// Small pieces of host memory that one kernel brings to their places.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace deepinfer::cuda {

struct Upload {
  void* to;
  const void* from;  // pinned host memory
  int64_t bytes;
};
constexpr int kMaxUploads = 32;
struct Uploads {
  Upload list[kMaxUploads];
  int count = 0;
};
void launch_uploads(cudaStream_t stream, const Uploads& uploads);

}  // namespace deepinfer::cuda
