// Attention over window and chosen entries for any widths: two passes, so that the maximum is known before a
// probability is rounded (the `vendor` numerics). attention_mma.cu is the fast one.
//
//   A block takes a row and 8 heads. Scores: a warp a key, lanes hold the key's channels. Sum: a thread a channel, keys
//   ascending.
#include "kernels/cuda/attention_keys.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kHeads = kAttentionHeads;

__global__ void __launch_bounds__(kThreads) attention_kernel(AttentionArgs p) {
  begin_kernel();
  extern __shared__ float shared[];
  float* q = shared;                        // [kHeads][dim]
  float* weight = shared + kHeads * p.dim;  // [kHeads][max_keys]
  __shared__ float total[kHeads];
  const int64_t t = blockIdx.x;
  const int first_head = blockIdx.y * kHeads, num_heads = min(kHeads, p.heads - first_head);
  const int dim = p.dim, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const RowKeys keys(p, t);

  for (int i = threadIdx.x; i < num_heads * dim; i += kThreads) q[i] = to_f(p.q.row(t)[first_head * dim + i]);
  __syncthreads();
  for (int i = threadIdx.x; i < num_heads * p.pairs; i += kThreads) {
    const int h = i / p.pairs, pair = i % p.pairs;
    float* a = q + h * dim + dim - 2 * p.pairs + 2 * pair;
    turn(a[0], a[1], p.cos.row(t)[pair], p.sin.row(t)[pair]);
    a[0] = round_b(a[0]);
    a[1] = round_b(a[1]);
  }
  __syncthreads();

  for (int k = warp; k < keys.count; k += kWarps) {
    float sum[kHeads] = {};
    for (int c = lane; c < dim; c += kWarp) {
      const float key = keys.value(k, c);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sum[h] += q[h * dim + c] * key;  // rows past num_heads are unused memory
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float score = lane_sum(sum[h]) * p.scale;
      if (lane == 0) weight[h * p.max_keys + k] = score;
    }
  }
  __syncthreads();

  // A warp a head: maximum, probabilities, denominator.
  if (warp < num_heads) {
    float* w = weight + warp * p.max_keys;
    float top = -1e30f, sum = 0;  // the start stands for "no key": the sink then takes everything
    for (int k = lane; k < keys.count; k += kWarp) top = fmaxf(top, w[k]);
    top = lane_max(top);
    for (int k = lane; k < keys.count; k += kWarp) {
      const float e = expf(w[k] - top);
      sum += e;
      w[k] = round_b(e);  // rounded for the values, not in the denominator
    }
    sum = lane_sum(sum);
    if (lane == 0) total[warp] = sum + expf(p.sink[first_head + warp] - top);
  }
  __syncthreads();

  // The sum goes where the queries were, so that the rotation back finds both channels of a pair.
  for (int c = threadIdx.x; c < dim; c += kThreads) {
    float sum[kHeads] = {};
    for (int k = 0; k < keys.count; ++k) {
      const float key = keys.value(k, c);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sum[h] += weight[h * p.max_keys + k] * key;
    }
    for (int h = 0; h < num_heads; ++h) q[h * dim + c] = round_b(sum[h] / total[h]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_heads * p.pairs; i += kThreads) {
    const int h = i / p.pairs, pair = i % p.pairs;
    float* a = q + h * dim + dim - 2 * p.pairs + 2 * pair;
    turn(a[0], a[1], p.cos.row(t)[pair], -p.sin.row(t)[pair]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_heads * dim; i += kThreads) p.out.row(t)[first_head * dim + i] = to_b(q[i]);
}

}  // namespace

void launch_attention(cudaStream_t stream, const AttentionArgs& a) {
  constexpr int kMostShared = 220 << 10;
  static const cudaError_t status =
      cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
  deepinfer::cuda::check(status, "attention");
  const size_t bytes = size_t{kHeads} * static_cast<size_t>(a.dim + a.max_keys) * 4;
  start("attention", attention_kernel, dim3(a.num_rows, (a.heads + kHeads - 1) / kHeads), kThreads, bytes, stream, a);
}

}  // namespace deepinfer::kernels::cuda
