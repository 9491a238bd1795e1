// Clusters of blocks: their barrier, and reading each other's shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace deepinfer::kernels::cuda {

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The address of this place in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t remote_address(const void* place, int rank) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(place));
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  return address;
}
// The value at this place of another block's shared memory.
__device__ __forceinline__ float remote_float(const float* place, int rank) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(remote_address(place, rank)) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t remote_word(const uint32_t* place, int rank) {
  uint32_t v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(remote_address(place, rank)) : "memory");
  return v;
}
__device__ __forceinline__ uint4 remote_vector(const void* place, int rank) {
  uint4 v;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(remote_address(place, rank))
               : "memory");
  return v;
}

}  // namespace deepinfer::kernels::cuda
