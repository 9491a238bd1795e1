// What the CUDA kernels share: number formats, views of rows, sums over a block.
//
//   Activations are BF16. Every sum has a fixed order: a thread's own values ascending, then lanes by butterfly, then
//   warps ascending. None depends on the number of rows, so a row's bits do not either.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/smxx/launch.h"

namespace deepinfer::kernels::cuda {

constexpr int kWarp = 32;

// Launches a kernel, blocks as clusters, that may start before its predecessor in the stream has ended; it must call
// begin_kernel (or allow_next and wait_for_previous) in every block, whatever the block does then.
template <typename... P, typename... A>
void start_clusters(const char* name, void (*kernel)(P...), dim3 grid, dim3 cluster, int threads, size_t shared_bytes,
                    cudaStream_t stream, const A&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 2 : 1;
  deepinfer::cuda::check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), name);
}
// Blocks along z are a cluster.
template <typename... P, typename... A>
void start(const char* name, void (*kernel)(P...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
           const A&... args) {
  start_clusters(name, kernel, grid, {1, 1, grid.z}, threads, shared_bytes, stream, args...);
}
// Lets the next kernel of the stream take free places.
__device__ __forceinline__ void allow_next() {
  asm volatile("griddepcontrol.launch_dependents;");
}
// Until everything before this kernel is done and visible.
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void begin_kernel() {
  allow_next();
  wait_for_previous();
}
inline int num_multiprocessors() {
  static const int number = [] {
    int n = 0;
    deepinfer::cuda::check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
    return n;
  }();
  return number;
}
__host__ __device__ constexpr int64_t blocks_for(int64_t count, int64_t of) {
  return (count + of - 1) / of;
}

__device__ __forceinline__ float to_f(Bf16 v) {
  return __bfloat162float(v);
}
__device__ __forceinline__ Bf16 to_b(float v) {
  return __float2bfloat16_rn(v);
}
__device__ __forceinline__ float round_b(float v) {
  return to_f(to_b(v));
}

// ---- formats (model.md 6.1) ---------------------------------------------------------------------------------------

constexpr float kActFloor = 1e-4f;             // of a group's maximum, act and fp8()
constexpr float kFp4e8Floor = 7.0527024e-38f;  // 6 x 2^-126: smallest normal scale
constexpr float kFp4e4Floor = 6.f / 512;       // smallest e4m3 scale
constexpr float kInvE4M3 = 1.f / 448, kInvE2M1 = 1.f / 6;

__device__ __forceinline__ float e4m3_value(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}
__device__ __forceinline__ uint8_t e4m3_code(float v) {
  return static_cast<uint8_t>(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3));
}
// 2^(b - 127); 255 is NaN.
__device__ __forceinline__ float ue8m0_value(uint32_t b) {
  return b == 0 ? 5.8774718e-39f : __uint_as_float(b == 255 ? 0x7fc00000u : b << 23);
}
__device__ __forceinline__ uint32_t ue8m0_ceil(float largest, float inverse_limit) {
  const uint32_t u = __float_as_uint(__fmul_rn(largest, inverse_limit));
  return (u >> 23) + ((u & 0x7fffffu) != 0);
}
__device__ __forceinline__ uint32_t e2m1_code(float v) {
  const float a = fabsf(v);
  // A NaN takes the last code, as in the reference: no border is above it.
  const uint32_t code = a <= 0.25f   ? 0
                        : a < 0.75f  ? 1
                        : a <= 1.25f ? 2
                        : a < 1.75f  ? 3
                        : a <= 2.5f  ? 4
                        : a < 3.5f   ? 5
                        : a <= 5.f   ? 6
                                     : 7;
  return code | (__float_as_uint(v) >> 31) << 3;
}
__device__ __forceinline__ float e2m1_value(uint32_t code) {
  const float magnitudes[8] = {0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
  const float v = magnitudes[code & 7];
  return code & 8 ? -v : v;
}

template <int kPairs>
__device__ __forceinline__ float largest_of(const __nv_bfloat162* pairs) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float2 f = __bfloat1622float2(pairs[i]);
    largest = fmaxf(largest, fmaxf(fabsf(f.x), fabsf(f.y)));
  }
  return largest;
}
// Columns of a scale group rounded to e4m3 (model.md 6.2, act), given the largest magnitude of the group. Two at a
// time, since such conversions are slow.
template <int kPairs>
__device__ __forceinline__ void round_pairs(__nv_bfloat162* pairs, float largest) {
  const float scale = ue8m0_value(ue8m0_ceil(fmaxf(largest, kActFloor), kInvE4M3)), inverse = 1.f / scale;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float2 f = __bfloat1622float2(pairs[i]);
    const __nv_fp8x2_storage_t codes =
        __nv_cvt_float2_to_fp8x2({f.x * inverse, f.y * inverse}, __NV_SATFINITE, __NV_E4M3);
    const float2 rounded = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
    pairs[i] = __floats2bfloat162_rn(rounded.x * scale, rounded.y * scale);
  }
}

// ---- asynchronous copies to shared memory ---------------------------------------------------------------------------

__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void copy_word_async(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

// ---- sums over lanes and blocks -------------------------------------------------------------------------------------

template <int kLanes = kWarp>
__device__ __forceinline__ float lane_sum(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}
// NaN is skipped, as in the reference.
template <int kLanes = kWarp>
__device__ __forceinline__ float lane_max(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  return v;
}
// The sum over all threads of a block of kThreads, for all of them. `scratch` holds one float a warp.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* scratch) {
  v = lane_sum(v);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) sum += scratch[w];
  return sum;
}

// ---- caches
// -----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int64_t window_record_size(int dim) {
  return dim + dim / 32;
}
__device__ __forceinline__ const uint8_t* window_record(const WindowCache& c, int32_t slot, int64_t pos) {
  return reinterpret_cast<const uint8_t*>(c.data) +
         (static_cast<int64_t>(slot) * c.ring + pos % c.ring) * window_record_size(c.head_dim);
}
// Entry `group` of the sequence with this table: dim / 2 bytes of codes, then dim / 16 scales.
__device__ __forceinline__ uint8_t* entry_record(const GlobalCache& c, const int32_t* table, uint32_t group) {
  const uint32_t per_block = 128u / static_cast<uint32_t>(c.ratio);
  return reinterpret_cast<uint8_t*>(c.main) + table[group / per_block] * c.main_block_bytes +
         static_cast<int>(group % per_block) * (c.head_dim / 2 + c.head_dim / 16);
}
struct IndexRecord {
  uint8_t *codes, *scales;
};
__device__ __forceinline__ IndexRecord index_record(const GlobalCache& c, const int32_t* table, uint32_t group) {
  const uint32_t per_block = 128u / static_cast<uint32_t>(c.ratio);
  const int at = static_cast<int>(group % per_block);
  uint8_t* block = reinterpret_cast<uint8_t*>(c.index) + table[group / per_block] * c.index_block_bytes;
  return {block + at * (c.index_dim / 2),
          block + static_cast<int>(per_block) * (c.index_dim / 2) + at * (c.index_dim / 32)};
}

// Turns the pair (a, b) by the angle with this cosine and sine.
__device__ __forceinline__ void turn(float& a, float& b, float c, float s) {
  const float old = a;
  a = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
  b = __fadd_rn(__fmul_rn(old, s), __fmul_rn(b, c));
}

__device__ __forceinline__ float swiglu_value(float gate, float up, float limit) {
  if (limit > 0) {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
  }
  return gate / (1.f + expf(-gate)) * up;
}

}  // namespace deepinfer::kernels::cuda
