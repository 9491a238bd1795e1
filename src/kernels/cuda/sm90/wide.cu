// Products of up to 64 tokens a tile with Hopper's warpgroup instruction; the same bits as smxx/product.cuh. tiles.cu
// has more tokens.
//
//   A block takes 128 weight rows and 64 tokens, each of its two warpgroups 64 of the rows. Coded weights come into
//   shared memory, are expanded in registers and are the register operand; tokens are the shared one. wgmma adds the 16
//   columns of a step as mma.sync does (measured: no bit differs), and the columns of a step, the order of steps and
//   the segments are those of smxx, so results are equal. For that the tokens are stored in "wide" order: the columns
//   that the four lanes of a quad own, step by step (launch.h, wide_place).
//
//   Stages: [weights][tokens, columns 0 - 63][tokens, columns 64 - 127], tokens with the 128-byte swizzle. A stage is
//   filled again when the step after the one that read it has begun: until then a warpgroup may still be multiplying.
#include "kernels/cuda/sm90/warpgroup.cuh"
#include "kernels/cuda/smxx/cluster.cuh"
#include "kernels/cuda/smxx/tasks.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kN = 8;  // tokens of a tile, in eights

template <Format F>
struct WideLayout {
  static constexpr int kRows = 128, kTokens = 8 * kN;
  static constexpr int kTokensAt = kRows * 64 * pieces_of(F), kHalfBytes = kTokens * 128;
  static constexpr int kStageBytes = kTokensAt + 2 * kHalfBytes;
  static constexpr int kMost = 112 << 10;  // two blocks share a multiprocessor
  static constexpr int kStages = kMost / kStageBytes >= 5 ? 5 : kMost / kStageBytes >= 3 ? kMost / kStageBytes : 3;
  static constexpr int kSumStride = kRows + 4;
  static constexpr int kRing = kStages * kStageBytes, kSums = 2 * 4 * kTokens * kSumStride;
  static constexpr int kBytes = (kRing > kSums ? kRing : kSums) + 1024;  // for the alignment
  static_assert(kTokensAt % 1024 == 0 && kHalfBytes % 1024 == 0 && kBytes <= 227 << 10);
};

template <Format F, typename Task>
__global__ void __launch_bounds__(kProductThreads, WideLayout<F>::kBytes <= 113 << 10 ? 2 : 1) wide_kernel(Task task) {
  using L = WideLayout<F>;
  begin_kernel();
  extern __shared__ uint8_t unaligned[];
  __shared__ int64_t token_offset[L::kTokens];  // elements from x
  uint8_t* shared = unaligned + (1024 - __cvta_generic_to_shared(unaligned) % 1024) % 1024;
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  WeightTile weights;
  TokenTile tokens;
  if (!task.locate(tile_of_block(), L::kRows, L::kTokens, weights, tokens)) return;
  const int cols = task.cols, steps_a_segment = segment_of(cols) / 128;
  // A cluster along z shares the segments: one each.
  const bool is_shared_out = gridDim.z > 1;
  const int first_step = is_shared_out ? static_cast<int>(blockIdx.z) * steps_a_segment : 0;
  const int num_steps = is_shared_out ? min(cols / 128 - first_step, steps_a_segment) : cols / 128;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, q = lane % 4, r = lane / 4;
  constexpr int kPieces = pieces_of(F), kStages = L::kStages;
  if (threadIdx.x < L::kTokens) token_offset[threadIdx.x] = tokens.row(threadIdx.x) - tokens.x;
  __syncthreads();

  // A thread copies the same piece of several rows and tokens.
  constexpr int kPerRow = 4 * kPieces, kRowsAtOnce = kProductThreads / kPerRow, kRowCopies = L::kRows / kRowsAtOnce;
  const int part = threadIdx.x % kPerRow, copy_row = threadIdx.x / kPerRow;
  auto base_of = [&](int row) { return row >= weights.half ? weights.codes[1] : weights.codes[0]; };
  uint32_t row_offset[kRowCopies];
#pragma unroll
  for (int i = 0; i < kRowCopies; ++i) {
    const int row = copy_row + kRowsAtOnce * i;
    row_offset[i] = static_cast<uint32_t>(RowPointer<F>(weights, row, cols).codes - base_of(row)) + 16 * part;
  }
  const int token_part = threadIdx.x % 16, half_at = token_part / 8 * L::kHalfBytes;
  auto copy_stage = [&](int step) {
    const uint32_t to = base + step % kStages * L::kStageBytes;
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      const int row = copy_row + kRowsAtOnce * i;
      copy_async(to + weight_piece_at<F>(row, part), base_of(row) + row_offset[i] + (first_step + step) * 64 * kPieces);
    }
#pragma unroll
    for (int i = 0; i < L::kTokens / 16; ++i) {
      const int token = threadIdx.x / 16 + 16 * i;
      copy_async(to + L::kTokensAt + half_at + token * 128 + (token_part % 8 ^ token % 8) * 16,
                 tokens.x + token_offset[token] + (first_step + step) * 128 + 8 * token_part);
    }
  };
#pragma unroll
  for (int s = 0; s < kStages - 2; ++s) {
    if (s < num_steps) copy_stage(s);
    commit_copies();
  }
  const int first_row = warp * 16 + r;  // of the tile; warpgroup g has rows 64 g ..
  const uint8_t* scales[2] = {RowPointer<F>(weights, first_row, cols).scales,
                              RowPointer<F>(weights, first_row + 8, cols).scales};
  uint32_t next_factor[2] = {};
  auto load_factors = [&](int step) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      next_factor[i] =
          F != Format::kBF16 && step < num_steps ? scale_factor<F>(__ldg(scales[i] + 4 * (first_step + step) + q)) : 0;
  };
  load_factors(0);

  float total[4 * kN];
  uint32_t a[2][2][4];
  auto multiply_step = [&](int step, float (&c)[4 * kN]) {
    wait_copies<kStages - 3>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (step + kStages - 2 < num_steps) copy_stage(step + kStages - 2);
    commit_copies();
    const uint32_t factor[2] = {next_factor[0], next_factor[1]};
    load_factors(step + 1);
    const uint8_t* stage = shared + step % kStages * L::kStageBytes;
    const uint32_t tokens_at = base + step % kStages * L::kStageBytes + L::kTokensAt;
    uint4 raw[2][kPieces];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < kPieces; ++k)
        raw[i][k] = *reinterpret_cast<const uint4*>(stage + weight_piece_at<F>(first_row + 8 * i, kPieces * q + k));
    }
    unrolled<4>([&](auto pair) {  // two steps of 16 columns go together, while the two before still run
      constexpr int kPair = decltype(pair)::value;
      uint32_t (&now)[2][4] = a[kPair % 2];
      expand_pair<F, kPair>(raw, factor, now[0], now[1]);
      const uint64_t columns = matrix_at(tokens_at + kPair / 2 * L::kHalfBytes) + kPair % 2 * 4;
      begin_products();
      warpgroup_mma(c, now[0], columns);
      warpgroup_mma(c, now[1], columns + 2);
      commit_products();
      wait_products<1>();  // the registers of the pair before are free again
    });
  };
  // A loop of its own for a segment: its sums may stay in flight until it ends.
  for (int begin = 0; begin < num_steps; begin += steps_a_segment) {
    const int end = min(num_steps, begin + steps_a_segment);
    float c[4 * kN] = {};
    for (int step = begin; step < end; ++step) multiply_step(step, c);
    wait_products<0>();
    keep_in_place(c);
#pragma unroll
    for (int i = 0; i < 4 * kN; ++i) total[i] = begin == 0 ? c[i] : total[i] + c[i];
  }
  wait_copies<0>();
  __syncthreads();
  const SumTile sums{reinterpret_cast<float*>(shared), L::kSumStride};
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums.at(first_row + 8 * (i / 2), 8 * n + 2 * q + i % 2) = total[4 * n + i] * inverse_unit(F);
  }
  if (!is_shared_out) {
    __syncthreads();
    task.finish(tile_of_block(), sums, L::kRows, tokens, static_cast<int>(threadIdx.x));
    return;
  }
  // Each block of the cluster adds the segments of some tokens, ascending.
  const int num_blocks = static_cast<int>(gridDim.z), share = (L::kTokens + num_blocks - 1) / num_blocks;
  const int first = static_cast<int>(blockIdx.z) * share, count = max(0, min(share, tokens.count - first));
  cluster_barrier();
  const SumTile mine{sums.data + L::kTokens * L::kSumStride, L::kSumStride};
  for (int i = threadIdx.x; i < count * L::kRows; i += kProductThreads) {
    const int token = i / L::kRows, row = i % L::kRows;
    float sum = 0;
    for (int z = 0; z < num_blocks; ++z) {
      const float part = remote_float(&sums.at(row, first + token), z);
      sum = z == 0 ? part : sum + part;
    }
    mine.at(row, token) = sum;
  }
  cluster_barrier();  // nobody leaves while its memory may be read
  tokens.begin += first;
  tokens.count = count;
  task.finish(tile_of_block(), mine, L::kRows, tokens, static_cast<int>(threadIdx.x));
}

// With few tiles a cluster of blocks takes the segments of each.
template <Format F, typename Task>
void launch(cudaStream_t stream, dim3 grid, const Task& task) {
  const auto multiprocessors = static_cast<unsigned>(num_multiprocessors());
  const int segment = segment_of(task.cols), num_segments = (task.cols + segment - 1) / segment;
  const bool is_power = (num_segments & (num_segments - 1)) == 0;
  if (grid.x * grid.y < multiprocessors && is_power) grid.z = static_cast<unsigned>(num_segments);
  constexpr int kBytes = WideLayout<F>::kBytes;
  static const cudaError_t status =
      cudaFuncSetAttribute(wide_kernel<F, Task>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  deepinfer::cuda::check(status, "wide");
  start("wide", wide_kernel<F, Task>, grid, kProductThreads, kBytes, stream, task);
}

template <Format F>
void launch_experts_as(cudaStream_t stream, const ExpertArgs& p) {
  const auto tiles = static_cast<unsigned>(p.slots.max_tiles);
  launch<F>(stream, {static_cast<unsigned>(blocks_for(p.width, 64)), tiles}, gate_up_task<F>(p, order_of(F)));
  launch<F>(stream, {static_cast<unsigned>(blocks_for(p.hidden, 128)), tiles}, down_task<F>(p));
}

}  // namespace

int multiprocessors() {
  return num_multiprocessors();
}

bool has_wide_products() {
  static const bool has = [] {
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major == 9;
  }();
  return has;
}

void launch_wide_products(cudaStream_t stream, Format format, const ProductArgs& a) {
  LinearTask task{a};
  const dim3 grid = grid_of(task, 128, 8 * kN);
  format == Format::kFp8 ? launch<Format::kFp8>(stream, grid, task) : launch<Format::kBF16>(stream, grid, task);
}

void launch_wide_experts(cudaStream_t stream, Format format, const ExpertArgs& a) {
  format == Format::kFp4 ? launch_experts_as<Format::kFp4>(stream, a) : launch_experts_as<Format::kFp8>(stream, a);
}

}  // namespace deepinfer::kernels::cuda
