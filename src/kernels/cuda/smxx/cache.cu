// What is written to the caches: window records, pooled groups, compressed entries and index keys. One block a row.
//
// A row's values lie in shared memory as floats that are representable in BF16; a warp encodes a group of 32 channels.
#include "kernels/cuda/smxx/norm.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMaxDim = kMaxRecordDim;

// v = round(gain * v / rms(v)) in shared memory; `sum` is this thread's share of the squares.
__device__ void norm_shared(float* v, int n, const Bf16* gain, float eps, float sum, float* scratch) {
  const float mean = block_sum<kThreads>(sum, scratch) / static_cast<float>(n);
  const float inverse = 1.f / sqrtf(mean + eps);
  for (int c = threadIdx.x; c < n; c += kThreads) v[c] = round_b(to_f(gain[c]) * (v[c] * inverse));
  __syncthreads();
}

// Turns the last pairs; every thread calls it between two barriers of its own.
__device__ void turn_shared(float* v, int n, int pairs, const float* cos, const float* sin) {
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    float *a = v + n - 2 * pairs + 2 * i, *b = a + 1;
    turn(*a, *b, cos[i], sin[i]);
    *a = round_b(*a);
    *b = round_b(*b);
  }
  __syncthreads();
}

// Two neighbouring lanes' codes in one byte, written by the even lane.
__device__ void store_pair(uint8_t* to, int c, uint32_t code) {
  const uint32_t next = __shfl_down_sync(0xffffffffu, code, 1);
  if (c % 2 == 0) to[c / 2] = static_cast<uint8_t>(code | next << 4);
}

__device__ void encode_window(const float* v, int n, uint8_t* record) {
  const int lane = threadIdx.x % kWarp;
  for (int g = threadIdx.x / kWarp; g < n / 32; g += kWarps) {
    const float x = v[32 * g + lane];
    const uint32_t scale = ue8m0_ceil(fmaxf(lane_max(fabsf(x)), kActFloor), kInvE4M3);
    record[32 * g + lane] = e4m3_code(x / ue8m0_value(scale));
    if (lane == 0) record[n + g] = static_cast<uint8_t>(scale);
  }
}
__device__ void encode_entry(const float* v, int n, uint8_t* record) {
  const int lane = threadIdx.x % kWarp;
  for (int g = threadIdx.x / kWarp; g < n / 32; g += kWarps) {
    const float x = v[32 * g + lane];
    const uint8_t scale = e4m3_code(fmaxf(lane_max<16>(fabsf(x)), kFp4e4Floor) / 6.f);
    store_pair(record + 16 * g, lane, e2m1_code(x / e4m3_value(scale)));
    if (lane % 16 == 0) record[n / 2 + 2 * g + lane / 16] = scale;
  }
}
__device__ void encode_index(const float* v, int n, const IndexRecord& record) {
  const int lane = threadIdx.x % kWarp;
  for (int g = threadIdx.x / kWarp; g < n / 32; g += kWarps) {
    const float x = v[32 * g + lane];
    const uint32_t scale = ue8m0_ceil(fmaxf(lane_max(fabsf(x)), kFp4e8Floor), kInvE2M1);
    store_pair(record.codes + 16 * g, lane, e2m1_code(x / ue8m0_value(scale)));
    if (lane == 0) record.scales[g] = static_cast<uint8_t>(scale);
  }
}

// Blocks with y = 1 norm a row of their own.
__global__ void __launch_bounds__(kThreads) window_keys_kernel(WindowKeyArgs a, NormArgs norm) {
  begin_kernel();
  __shared__ float v[kMaxDim], scratch[kWarps];
  const int64_t t = blockIdx.x;
  if (blockIdx.y == 1) return norm_row<kThreads>(norm, t, scratch);
  float sum = 0;
  for (int c = threadIdx.x; c < a.dim; c += kThreads) {
    v[c] = to_f(a.raw.row(t)[c]);
    sum += v[c] * v[c];
  }
  norm_shared(v, a.dim, a.gain, a.eps, sum, scratch);
  turn_shared(v, a.dim, a.pairs, a.cos.row(t), a.sin.row(t));
  encode_window(v, a.dim, a.records + t * window_record_size(a.dim));
}

__global__ void window_store_kernel(const Run* runs, const int32_t* run_of_row, const uint8_t* records,
                                    WindowCache cache) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  const Run& run = runs[run_of_row[t]];
  const int64_t at = t - run.row_begin, bytes = window_record_size(cache.head_dim);
  if (at < run.num_rows - cache.ring) return;
  uint8_t* to = const_cast<uint8_t*>(window_record(cache, run.slot, run.first_pos + at));
  for (int64_t i = threadIdx.x; i < bytes; i += kThreads) to[i] = records[t * bytes + i];
}

// T: type of the compressor's products, F32 for pairs.
template <typename T>
__global__ void pool_kernel(const Run* runs, const int32_t* run_of_row, const int64_t* positions,
                            const int32_t* group_of_row, Rows<T> kv, Rows<T> gate, TailCache tail, int dim, int ratio,
                            const Bf16* gain, float eps, Rows<Bf16> latent) {
  begin_kernel();
  __shared__ float v[kMaxDim], scratch[kWarps];
  const int64_t t = blockIdx.x;
  const int32_t group_row = group_of_row[t];
  if (group_row < 0) return;
  const Run& run = runs[run_of_row[t]];
  const int64_t last = positions[t];
  float sum = 0;
  for (int c = threadIdx.x; c < dim; c += kThreads) {
    if (ratio == 1) {
      v[c] = static_cast<float>(kv.row(t)[c]);
    } else {
      float value[2], weight[2];
      for (int k = 0; k < 2; ++k) {  // rows of this batch, or kept from earlier ones
        const int64_t pos = last - 1 + k;
        const bool is_new = pos >= run.first_pos;
        const float* kept = tail.data + (static_cast<int64_t>(run.slot) * tail.ring + pos % tail.ring) * 2 * dim;
        value[k] = is_new ? static_cast<float>(kv.row(t - 1 + k)[c]) : kept[c];
        weight[k] = is_new ? static_cast<float>(gate.row(t - 1 + k)[c]) : kept[dim + c];
      }
      // As std::max does in the reference: a NaN in the second place is ignored.
      const float top = weight[0] < weight[1] ? weight[1] : weight[0];
      const float a = expf(weight[0] - top), b = expf(weight[1] - top), total = a + b;
      v[c] = round_b(value[0] * (a / total) + value[1] * (b / total));
    }
    sum += v[c] * v[c];
  }
  norm_shared(v, dim, gain, eps, sum, scratch);
  for (int c = threadIdx.x; c < dim; c += kThreads) latent.row(group_row)[c] = to_b(v[c]);
}

__global__ void tail_store_kernel(const Run* runs, const int32_t* run_of_row, Rows<float> kv, Rows<float> gate,
                                  TailCache tail, int dim) {
  begin_kernel();
  const int64_t t = blockIdx.x;
  const Run& run = runs[run_of_row[t]];
  const int64_t at = t - run.row_begin;
  if (at < run.num_rows - tail.ring) return;
  float* to = tail.data + (static_cast<int64_t>(run.slot) * tail.ring + (run.first_pos + at) % tail.ring) * 2 * dim;
  for (int c = threadIdx.x; c < dim; c += kThreads) {
    to[c] = kv.row(t)[c];
    to[dim + c] = gate.row(t)[c];
  }
}

__global__ void global_write_kernel(const Run* runs, const int32_t* run_of_row, const int64_t* positions,
                                    const int32_t* group_of_row, Rows<Bf16> latent, Rows<Bf16> key_raw, int dim,
                                    int index_dim, const Bf16* key_gain, float eps, Frequencies freq,
                                    GlobalCache cache) {
  begin_kernel();
  __shared__ float v[kMaxDim], key[kMaxDim], cos[kMaxPairs], sin[kMaxPairs], scratch[kWarps];
  const int64_t t = blockIdx.x;
  const int32_t row = group_of_row[t];
  if (row < 0) return;
  const Run& run = runs[run_of_row[t]];
  const int64_t group = positions[t] / cache.ratio, pos = group * cache.ratio;
  if (pos < run.write_floor) return;
  if (threadIdx.x < freq.count) {
    double s, c;
    sincos(static_cast<double>(static_cast<float>(pos) * freq.f[threadIdx.x]), &s, &c);
    cos[threadIdx.x] = static_cast<float>(c);
    sin[threadIdx.x] = static_cast<float>(s);
  }
  for (int c = threadIdx.x; c < dim; c += kThreads) v[c] = to_f(latent.row(row)[c]);
  float sum = 0;
  for (int c = threadIdx.x; c < index_dim; c += kThreads) {
    key[c] = to_f(key_raw.row(row)[c]);
    sum += key[c] * key[c];
  }
  norm_shared(key, index_dim, key_gain, eps, sum, scratch);
  turn_shared(key, index_dim, freq.count, cos, sin);
  encode_index(key, index_dim, index_record(cache, run.block_table, static_cast<uint32_t>(group)));
  turn_shared(v, dim, freq.count, cos, sin);
  encode_entry(v, dim, entry_record(cache, run.block_table, static_cast<uint32_t>(group)));
}

}  // namespace

void launch_window_keys(cudaStream_t stream, const WindowKeyArgs& a, const NormArgs* norm) {
  start("window_keys", window_keys_kernel, dim3(a.num_rows, norm == nullptr ? 1 : 2), kThreads, 0, stream, a,
        norm == nullptr ? NormArgs{} : *norm);
}

void launch_window_store(cudaStream_t stream, const BatchArgs& b, const uint8_t* records, const WindowCache& cache) {
  start("window_store", window_store_kernel, b.num_rows, kThreads, 0, stream, b.runs, b.run_of_row, records, cache);
}

void launch_pool(cudaStream_t stream, const BatchArgs& b, const PoolArgs& a) {
  if (a.ratio == 1) {
    start("pool", pool_kernel<Bf16>, b.num_rows, kThreads, 0, stream, b.runs, b.run_of_row, b.positions, a.group_of_row,
          a.kv, Rows<Bf16>{}, TailCache{}, a.dim, 1, a.gain, a.eps, a.latent);
    return;
  }
  start("pool", pool_kernel<float>, b.num_rows, kThreads, 0, stream, b.runs, b.run_of_row, b.positions, a.group_of_row,
        a.kv_pairs, a.gate, a.tail, a.dim, 2, a.gain, a.eps, a.latent);
  // After the pooling, which may still read what this overwrites.
  start("tail_store", tail_store_kernel, b.num_rows, kThreads, 0, stream, b.runs, b.run_of_row, a.kv_pairs, a.gate,
        a.tail, a.dim);
}

void launch_global_write(cudaStream_t stream, const BatchArgs& b, const GlobalWriteArgs& a) {
  start("global_write", global_write_kernel, b.num_rows, kThreads, 0, stream, b.runs, b.run_of_row, b.positions,
        a.group_of_row, a.latent, a.key_raw, a.dim, a.index_dim, a.key_gain, a.eps, a.freq, a.cache);
}

}  // namespace deepinfer::kernels::cuda
