// What works on one row at a time: embedding, norms, rotations, means, Engram, sums of slots. Mostly one block a row.
#include "kernels/cuda/smxx/norm.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kThreads = 256;
__global__ void embed_kernel(EmbedArgs a) {
  begin_kernel();
  const int64_t t = blockIdx.x, c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= a.d) return;
  const int32_t id = a.ids[t];
  const int64_t row = id - a.row_begin;
  Bf16 v = to_b(0.f);
  if (id < 0) {
    if (a.given.data != nullptr) v = to_b(a.given.row(t)[c]);
  } else if (row >= 0 && row < a.table_rows) {
    v = a.table[row * a.d + c];
  }
  for (int j = 0; j < a.m; ++j) a.streams.row(t)[j * a.d + c] = v;
}

__global__ void rms_norm_kernel(NormArgs a) {
  begin_kernel();
  __shared__ float scratch[kThreads / kWarp];
  norm_row<kThreads>(a, blockIdx.x, scratch);
}

__global__ void rope_kernel(const int64_t* positions, Frequencies freq, Rows<float> cos, Rows<float> sin) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  const int i = threadIdx.x;
  if (i >= freq.count) return;
  // The angle is fp32; its cosine is taken in double, since far positions make large angles.
  const double angle = static_cast<float>(positions[t]) * freq.f[i];
  double s, c;
  sincos(angle, &s, &c);
  cos.row(t)[i] = static_cast<float>(c);
  sin.row(t)[i] = static_cast<float>(s);
}

__global__ void stream_mean_kernel(Rows<Bf16> streams, int m, int64_t d, Rows<Bf16> mean) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < d; c += kThreads) {
    float sum = 0;
    for (int j = 0; j < m; ++j) sum += to_f(streams.row(t)[j * d + c]);
    mean.row(t)[c] = to_b(sum / static_cast<float>(m));
  }
}

__global__ void gather_rows_kernel(const Bf16* table, int64_t table_rows, int64_t row_begin, const int32_t* ids,
                                   Rows<Bf16> out, int64_t n) {
  begin_kernel();
  const int64_t t = blockIdx.x, row = ids[t] - row_begin;
  const bool is_here = row >= 0 && row < table_rows;
  for (int64_t c = threadIdx.x; c < n; c += kThreads) out.row(t)[c] = is_here ? table[row * n + c] : to_b(0.f);
}

__global__ void combine_kernel(Rows<Bf16> slots, Rows<Bf16> shared, int top_k, int64_t d, Rows<Bf16> z) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < d; c += kThreads) {
    float sum = 0;
    for (int k = 0; k < top_k; ++k) sum += to_f(slots.row(t)[k * d + c]);
    z.row(t)[c] = to_b(sum + to_f(shared.row(t)[c]));
  }
}

__global__ void swiglu_kernel(Rows<Bf16> gate, Rows<Bf16> up, Rows<Bf16> a, int64_t n, float limit) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  for (int64_t c = threadIdx.x; c < n; c += kThreads)
    a.row(t)[c] = to_b(swiglu_value(to_f(gate.row(t)[c]), to_f(up.row(t)[c]), limit));
}

// One warp a table row.
__global__ void engram_gather_kernel(EngramGatherArgs a) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  for (int64_t i = threadIdx.x / kWarp; i < a.columns; i += kThreads / kWarp) {
    const int64_t row = a.rows.row(t)[i] - a.row_begin;
    Bf16* to = a.out.row(t) + i * a.dim;
    const bool is_here = row >= 0 && row < a.table_rows;
    for (int64_t c = 4 * (threadIdx.x % kWarp); c < a.dim; c += 4 * kWarp) {
      const uint32_t word = is_here ? *reinterpret_cast<const uint32_t*>(a.codes + row * a.dim + c) : 0;
      const float scale = is_here ? ue8m0_value(a.scales[row * (a.dim / 32) + c / 32]) : 0.f;
      for (int k = 0; k < 4; ++k)
        to[c + k] = is_here ? to_b(e4m3_value(static_cast<uint8_t>(word >> 8 * k)) * scale) : to_b(0.f);
    }
  }
}

// One block for a row and a stream.
constexpr int kGateThreads = 1024;
__global__ void __launch_bounds__(kGateThreads) engram_gate_kernel(EngramGateArgs p) {
  begin_kernel();
  __shared__ float scratch[kGateThreads / kWarp];
  const int64_t t = blockIdx.x, j = blockIdx.y, d = p.d;
  if (p.is_image != nullptr && p.is_image[t] != 0) return;
  Bf16* h = p.streams.row(t) + j * d;
  const Bf16 *key = p.kv.row(t) + j * d, *value = p.kv.row(t) + p.m * d;
  float dot = 0, hh = 0, kk = 0;
  for (int64_t c = threadIdx.x; c < d; c += kGateThreads) {
    const float a = to_f(h[c]), k = to_f(key[c]);
    dot += a * (to_f(p.q_weight[j * d + c]) * to_f(p.k_weight[j * d + c])) * k;
    hh += a * a;
    kk += k * k;
  }
  dot = block_sum<kGateThreads>(dot, scratch);
  const float n = static_cast<float>(d);
  const float inverse_h = 1.f / sqrtf(block_sum<kGateThreads>(hh, scratch) / n + p.eps);
  const float inverse_k = 1.f / sqrtf(block_sum<kGateThreads>(kk, scratch) / n + p.eps);
  const float product = dot * (inverse_h * inverse_k) * p.width_factor;
  const float root = sqrtf(fmaxf(fabsf(product), 1e-6f));
  const float gate = 1.f / (1.f + expf(-copysignf(root, product)));
  for (int64_t c = threadIdx.x; c < d; c += kGateThreads) h[c] = to_b(to_f(h[c]) + gate * to_f(value[c]));
}

}  // namespace

void launch_embed(cudaStream_t stream, const EmbedArgs& a) {
  const dim3 grid(a.num_rows, static_cast<unsigned>(blocks_for(a.d, kThreads)));
  start("embed", embed_kernel, grid, kThreads, 0, stream, a);
}
void launch_rms_norm(cudaStream_t stream, const NormArgs& a, int num_rows) {
  start("rms_norm", rms_norm_kernel, num_rows, kThreads, 0, stream, a);
}
void launch_rope(cudaStream_t stream, const int64_t* positions, const Frequencies& freq, Rows<float> cos,
                 Rows<float> sin, int num_rows) {
  start("rope", rope_kernel, num_rows, kMaxPairs, 0, stream, positions, freq, cos, sin);
}
void launch_stream_mean(cudaStream_t stream, Rows<Bf16> streams, int m, Rows<Bf16> mean, int num_rows, int64_t d) {
  start("stream_mean", stream_mean_kernel, num_rows, kThreads, 0, stream, streams, m, d, mean);
}
void launch_gather_rows(cudaStream_t stream, const Bf16* table, int64_t table_rows, int64_t row_begin,
                        const int32_t* ids, Rows<Bf16> out, int num_rows, int64_t n) {
  start("gather_rows", gather_rows_kernel, num_rows, kThreads, 0, stream, table, table_rows, row_begin, ids, out, n);
}
void launch_combine(cudaStream_t stream, Rows<Bf16> slots, Rows<Bf16> shared, int top_k, Rows<Bf16> z, int num_rows,
                    int64_t d) {
  start("combine", combine_kernel, num_rows, kThreads, 0, stream, slots, shared, top_k, d, z);
}
void launch_swiglu(cudaStream_t stream, Rows<Bf16> gate, Rows<Bf16> up, Rows<Bf16> a, int num_rows, int64_t n,
                   float limit) {
  start("swiglu", swiglu_kernel, num_rows, kThreads, 0, stream, gate, up, a, n, limit);
}
void launch_engram_gather(cudaStream_t stream, const EngramGatherArgs& a) {
  start("engram_gather", engram_gather_kernel, a.num_rows, kThreads, 0, stream, a);
}
void launch_engram_gate(cudaStream_t stream, const EngramGateArgs& a) {
  start("engram_gate", engram_gate_kernel, dim3(a.num_rows, a.m), kGateThreads, 0, stream, a);
}

}  // namespace deepinfer::kernels::cuda
