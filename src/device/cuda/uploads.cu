#include "device/cuda/uploads.h"

#include "device/cuda/check.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__device__ void copy(const Upload& u) {
  const auto* from = static_cast<const T*>(u.from);
  auto* to = static_cast<T*>(u.to);
  for (int64_t i = threadIdx.x; i < u.bytes / static_cast<int64_t>(sizeof(T)); i += kThreads) to[i] = from[i];
}

// A block an upload.
__global__ void uploads_kernel(Uploads uploads) {
  const Upload& u = uploads.list[blockIdx.x];
  const uint64_t together = reinterpret_cast<uint64_t>(u.from) | reinterpret_cast<uint64_t>(u.to) | u.bytes;
  if (together % 8 == 0) return copy<uint64_t>(u);
  if (together % 4 == 0) return copy<uint32_t>(u);
  copy<uint8_t>(u);
}

}  // namespace

void launch_uploads(cudaStream_t stream, const Uploads& uploads) {
  uploads_kernel<<<uploads.count, kThreads, 0, stream>>>(uploads);
  check(cudaGetLastError(), "uploads");
}

}  // namespace deepinfer::cuda
