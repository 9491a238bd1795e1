// Products of coded weights with tokens: y[t, i] = sum over k of x[t, k] W[i, k].
//
//   Weight rows are the wide side of the tensor core operation, tokens the 8 columns, so that one token wastes nothing
//   but flops. Two kernels with the same order of addition, so a token's bits do not depend on which one ran:
//
//     order       columns are cut into at most 8 segments (segment_of); a segment is one chain of mma over its super
//                 groups of 128 columns; the segments are added ascending
//     few_rows    a block takes 16 kM weight rows and 8 kN tokens, a warp one segment with a ring of its own
//     many_rows   a block takes 64 kM weight rows and 16 kN tokens, a warp a quarter of the rows and half of the
//     tokens;
//                 both sides pass through shared memory up to three stages ahead
//
//   Both leave the tile's sums in shared memory and hand it to the task: `Task` says which weights and tokens a block
//   works on and what happens to the sums.
#pragma once

#include <algorithm>

#include "kernels/cuda/smxx/mma.cuh"

namespace deepinfer::kernels::cuda {

constexpr int kProductThreads = 256, kProductWarps = kProductThreads / kWarp;
constexpr int kMaxSegments = 8;

__host__ __device__ constexpr int segment_of(int cols) {
  const int groups = (cols + 127) / 128;
  return (groups + kMaxSegments - 1) / kMaxSegments * 128;
}

// Numbers of a tile's weight rows and tokens.
struct TileAt {
  int rows, tokens;
};
__device__ __forceinline__ TileAt tile_of_block() {
  return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y)};
}

// One or two stacks of weight rows that a block multiplies together: local row i of `half` or more belongs to the
// second.
struct WeightTile {
  const uint8_t *codes[2], *scales[2];
  int num_rows[2];  // of each stack, counted from the tile's first row; at least 1
  int half;         // local rows of the first stack
  int scale_shift;  // 5: a scale row serves 32 weight rows; the tile begins at a multiple of them
};
// The tokens of a block.
struct TokenTile {
  const Bf16* x;  // [.., cols] in the order that the kernel wants, 16-byte aligned rows
  int64_t stride;
  const int32_t* rows;  // row of x of each token, or nullptr: rows begin, begin + 1, ...
  int begin, count;     // at least 1
  int divisor;          // the row is rows[i] / divisor
  __device__ int row_number(int i) const {
    const int at = begin + min(i, count - 1);
    return rows == nullptr ? at : rows[at] / divisor;
  }
  __device__ const Bf16* row(int i) const { return x + row_number(i) * stride; }
};

// Row i of a tile; past the end of its stack the last row stands in, its sums are dropped.
template <Format F>
struct RowPointer {
  const uint8_t *codes, *scales;
  __device__ RowPointer(const WeightTile& w, int i, int cols) {
    const bool is_second = i >= w.half;  // no index into the arrays: they stay in registers
    const int at = is_second ? min(i - w.half, w.num_rows[1] - 1) : min(i, w.num_rows[0] - 1);
    codes = (is_second ? w.codes[1] : w.codes[0]) + at * row_bytes_of(F, cols);
    scales = F == Format::kBF16
                 ? nullptr
                 : (is_second ? w.scales[1] : w.scales[0]) + static_cast<int64_t>(at >> w.scale_shift) * (cols / 32);
  }
};

// Zeros instead where the columns have ended.
__device__ __forceinline__ void copy_async_or_clear(uint32_t to, const void* from, bool exists) {
  if (exists) {
    copy_async(to, from);
  } else {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
  }
}

// 128 columns in shared memory: [tokens][4 lanes of a quad] pieces of 64 bytes, 80 apart, rows 320 apart, and the coded
// weights likewise. With these distances 8 neighbouring lanes read 8 different places of 16 bytes.
constexpr int kTokenPieceStride = 80, kTokenRowStride = 320;
__host__ __device__ constexpr int weight_piece_stride(Format f) {
  return f == Format::kFp4 ? 16 : f == Format::kFp8 ? 32 : 80;
}
__host__ __device__ constexpr int weight_row_stride(Format f) {
  return f == Format::kFp4 ? 64 : f == Format::kFp8 ? 144 : 320;
}

// The sums of a tile, [tokens][stride] with the weight rows of a token in a row. `sums4`: of rows row .. row + 3; row,
// strides and addresses are multiples of 4 floats.
struct SumTile {
  static constexpr int kUnroll = 4;  // of loops over them
  float* data;
  int stride;
  __device__ float& at(int row, int token) const { return data[token * stride + row]; }
  __device__ float sum(int row, int token) const { return at(row, token); }
  __device__ float4 sums4(int row, int token) const { return *reinterpret_cast<const float4*>(&at(row, token)); }
};
// In parts that are added ascending, times `unit`.
struct SumParts {
  static constexpr int kUnroll = 1;  // code that is run through once: short rather than fast
  SumTile first;
  int num_parts, part_stride;
  float unit;
  __device__ float sum(int row, int token) const {
    const float* from = &first.at(row, token);
    float v = from[0];
    for (int i = 1; i < num_parts; ++i) v += from[i * part_stride];
    return v * unit;
  }
  __device__ float4 sums4(int row, int token) const {
    const float* from = &first.at(row, token);
    float4 v = *reinterpret_cast<const float4*>(from);
    for (int i = 1; i < num_parts; ++i) {
      const float4 part = *reinterpret_cast<const float4*>(from + i * part_stride);
      v = {v.x + part.x, v.y + part.y, v.z + part.z, v.w + part.w};
    }
    return {v.x * unit, v.y * unit, v.z * unit, v.w * unit};
  }
};

// Pieces of 16 bytes are exchanged within a row of 128 columns so that 8 neighbouring lanes read 8 different places.
__host__ __device__ constexpr int wide_piece_at(int row, int piece) {  // rows of 256 bytes, a quad reads 4 q + i
  return row * 256 + (piece ^ piece >> 3 << 1 ^ (row & 1)) * 16;
}
template <Format F>
__host__ __device__ constexpr int weight_piece_at(int row, int piece) {
  return F == Format::kFp4   ? row * 64 + piece * 16
         : F == Format::kFp8 ? row * 128 + (piece ^ (row & 1)) * 16
                             : wide_piece_at(row, piece);
}

// 128 columns: c += weights x tokens. `tokens`(n, i) gives 8 of the lane's 32 columns of its token of the n-th eight,
// in the order of the codes.
template <Format F, int kM, int kN, typename Tokens>
__device__ __forceinline__ void multiply_columns(const uint4 (&raw)[kM][2][pieces_of(F)],
                                                 const uint32_t (&factor)[kM][2], Tokens&& tokens,
                                                 float (&c)[kM][kN][4]) {
  unrolled<4>([&](auto pair) {  // two steps of 16 columns
    constexpr int kPair = decltype(pair)::value;
    uint32_t a[2][kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) expand_pair<F, kPair>(raw[m], factor[m], a[0][m], a[1][m]);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const uint4 v = tokens(n, kPair);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(c[m][n], a[0][m], v.x, v.y);
        mma(c[m][n], a[1][m], v.z, v.w);
      }
    }
  });
}

// ---- many rows ------------------------------------------------------------------------------------------------------

template <Format F, int kM, int kN>
struct ManyLayout {
  static constexpr int kRows = 64 * kM, kTokens = 16 * kN;
  static constexpr int kTokensAt = kRows * weight_row_stride(F);
  static constexpr int kStageBytes = kTokensAt + kTokens * kTokenRowStride;
  static constexpr int kMost = kM == 1 ? 110 << 10 : 200 << 10;  // two small blocks share a multiprocessor
  static constexpr int kStages = kMost / kStageBytes >= 4 ? 4 : kMost / kStageBytes >= 3 ? 3 : 2;
  static constexpr int kSumStride = kRows + 4;
  static constexpr int kRing = kStages * kStageBytes, kSums = 4 * kTokens * kSumStride;
  static constexpr int kBytes = kRing > kSums ? kRing : kSums;
};

template <Format F, int kM, int kN, typename Task>
__global__ void __launch_bounds__(kProductThreads, kM == 1 ? 2 : 1) many_rows_kernel(Task task) {
  begin_kernel();
  using L = ManyLayout<F, kM, kN>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int64_t token_offset[L::kTokens];  // elements from x
  WeightTile weights;
  TokenTile tokens;
  if (!task.locate(tile_of_block(), L::kRows, L::kTokens, weights, tokens)) return;
  const int cols = task.cols, segment = segment_of(cols), num_groups = cols / 32;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, q = lane % 4, r = lane / 4;
  const int warp_m = warp % 4 * 16 * kM, warp_n = warp / 4 * 8 * kN;
  constexpr int kStages = L::kStages, kPieces = pieces_of(F);
  if (threadIdx.x < L::kTokens) token_offset[threadIdx.x] = tokens.row(threadIdx.x) - tokens.x;
  __syncthreads();

  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  // Copies of one stage: 16 pieces of 16 bytes a token, 4 kPieces a weight row.
  auto copy_stage = [&](int first_group, int stage) {
    const uint32_t to_weights = base + stage * L::kStageBytes, to_tokens = to_weights + L::kTokensAt;
    const int piece = threadIdx.x % 16;
    const bool exists = first_group + piece / 4 < num_groups;
#pragma unroll
    for (int i = 0; i < L::kTokens / 16; ++i) {
      const int token = threadIdx.x / 16 + 16 * i;
      const Bf16* from = tokens.x + token_offset[token] + (exists ? 32 * first_group + 8 * piece : 0);
      copy_async_or_clear(to_tokens + token * kTokenRowStride + piece / 4 * kTokenPieceStride + piece % 4 * 16, from,
                          exists);
    }
    constexpr int kPerRow = 4 * kPieces, kRowsAtOnce = kProductThreads / kPerRow;
    const int part = threadIdx.x % kPerRow;
    const bool is_there = first_group + part / kPieces < num_groups;
#pragma unroll
    for (int i = 0; i < L::kRows / kRowsAtOnce; ++i) {
      const int row = threadIdx.x / kPerRow + kRowsAtOnce * i;
      const RowPointer<F> pointer(weights, row, cols);
      const uint8_t* from = pointer.codes + (is_there ? (first_group * kPieces + part) * 16 : 0);
      copy_async_or_clear(
          to_weights + row * weight_row_stride(F) + part / kPieces * weight_piece_stride(F) + part % kPieces * 16, from,
          is_there);
    }
  };

  float c[kM][kN][4] = {}, total[kM][kN][4] = {};
  const int num_steps = (num_groups + 3) / 4, steps_a_segment = segment / 128;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < num_steps) copy_stage(4 * s, s);
    commit_copies();
  }
  const uint8_t* scales[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[m][i] = RowPointer<F>(weights, warp_m + r + 16 * m + 8 * i, cols).scales;
  }
  uint32_t next_factor[kM][2] = {};
  auto load_factors = [&](int group) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        next_factor[m][i] = F != Format::kBF16 && group < num_groups ? scale_factor<F>(__ldg(scales[m][i] + group)) : 0;
    }
  };
  load_factors(q);
  for (int step = 0; step < num_steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();
    if (step + kStages - 1 < num_steps) copy_stage(4 * (step + kStages - 1), (step + kStages - 1) % kStages);
    commit_copies();
    const uint8_t* stage = shared + step % kStages * L::kStageBytes;
    const uint8_t* token_at = stage + L::kTokensAt + (warp_n + r) * kTokenRowStride + q * kTokenPieceStride;
    const uint8_t* weight_at = stage + (warp_m + r) * weight_row_stride(F) + q * weight_piece_stride(F);
    uint32_t factor[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) factor[m][i] = next_factor[m][i];
    }
    load_factors(4 * (step + 1) + q);
    uint4 raw[kM][2][kPieces];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k)
          raw[m][i][k] = *reinterpret_cast<const uint4*>(weight_at + (16 * m + 8 * i) * weight_row_stride(F) + 16 * k);
      }
    }
    auto tokens_at = [&](int n, int i) {
      return *reinterpret_cast<const uint4*>(token_at + 8 * n * kTokenRowStride + 16 * i);
    };
    multiply_columns<F>(raw, factor, tokens_at, c);
    if ((step + 1) % steps_a_segment == 0 || step + 1 == num_steps) {
      const bool is_first = step < steps_a_segment;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[m][n][i] = is_first ? c[m][n][i] : total[m][n][i] + c[m][n][i];
            c[m][n][i] = 0;
          }
        }
      }
    }
  }
  wait_copies<0>();
  __syncthreads();
  const SumTile sums{reinterpret_cast<float*>(shared), L::kSumStride};
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums.at(warp_m + 16 * m + r + 8 * (i / 2), warp_n + 8 * n + 2 * q + i % 2) = total[m][n][i] * inverse_unit(F);
      }
    }
  }
  __syncthreads();
  task.finish(tile_of_block(), sums, L::kRows, tokens, static_cast<int>(threadIdx.x));
}

// ---- launches -------------------------------------------------------------------------------------------------------

template <Format F, int kM, int kN, typename Task>
void launch_many(cudaStream_t stream, dim3 grid, const Task& task) {
  constexpr int kBytes = ManyLayout<F, kM, kN>::kBytes;
  static const cudaError_t status =
      cudaFuncSetAttribute(many_rows_kernel<F, kM, kN, Task>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  deepinfer::cuda::check(status, "many_rows");
  start("many_rows", many_rows_kernel<F, kM, kN, Task>, grid, kProductThreads, kBytes, stream, task);
}

}  // namespace deepinfer::kernels::cuda
