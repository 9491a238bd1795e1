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

// One or two stacks of weight rows that a block multiplies together: local row i of `half` or more belongs to the
// second.
struct WeightTile {
  const uint8_t *codes[2], *scales[2];
  int num_rows[2];     // of each stack, counted from the tile's first row; at least 1
  int half;            // local rows of the first stack
  int rows_per_scale;  // 32: a scale row serves 32 weight rows; the tile begins at a multiple of it
};
// The tokens of a block.
struct TokenTile {
  const Bf16* x;  // [.., cols] in the order of the weights' format, 16-byte aligned rows
  int64_t stride;
  const int32_t* rows;  // row of x of each token, or nullptr: rows begin, begin + 1, ...
  int begin, count;     // at least 1
  int divisor;          // the row is rows[i] / divisor
  __device__ const Bf16* row(int i) const {
    const int at = begin + min(i, count - 1);
    return x + (rows == nullptr ? at : rows[at] / divisor) * stride;
  }
};

// Row i of a tile; past the end of its stack the last row stands in, its sums are dropped.
template <Format F>
struct RowPointer {
  const uint8_t *codes, *scales;
  __device__ RowPointer(const WeightTile& w, int i, int cols) {
    const int side = i >= w.half, at = min(i - side * w.half, w.num_rows[side] - 1);
    codes = w.codes[side] + at * row_bytes_of(F, cols);
    scales = F == Format::kBF16 ? nullptr : w.scales[side] + static_cast<int64_t>(at / w.rows_per_scale) * (cols / 32);
  }
};

__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0));
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

// 128 columns in shared memory: [tokens][4 lanes of a quad] pieces of 64 bytes, 80 apart, rows 320 apart, and the coded
// weights likewise. With these distances 8 neighbouring lanes read 8 different places of 16 bytes.
constexpr int kTokenPieceStride = 80, kTokenRowStride = 320;
__host__ __device__ constexpr int weight_piece_stride(Format f) {
  return f == Format::kFp4 ? 16 : f == Format::kFp8 ? 32 : 80;
}
__host__ __device__ constexpr int weight_row_stride(Format f) {
  return f == Format::kFp4 ? 64 : f == Format::kFp8 ? 144 : 320;
}

// The sums of a tile, [tokens][kStride] with the weight rows of a token in a row.
struct SumTile {
  float* data;
  int stride;
  __device__ float& at(int row, int token) const { return data[token * stride + row]; }
};

// ---- few rows -------------------------------------------------------------------------------------------------------

// A stage of a warp's ring: weights, then tokens, then 4 scales a weight row. Two blocks share a multiprocessor where
// their rings fit, so 16 warps keep two stages each in flight. Pieces of 16 bytes are exchanged within a row so that 8
// neighbouring lanes read 8 different places.
__host__ __device__ constexpr int wide_piece_at(int row, int piece) {  // rows of 256 bytes, a quad reads 4 q + i
  return row * 256 + (piece ^ piece >> 3 << 1 ^ (row & 1)) * 16;
}
template <Format F>
__host__ __device__ constexpr int weight_piece_at(int row, int piece) {
  return F == Format::kFp4   ? row * 64 + piece * 16
         : F == Format::kFp8 ? row * 128 + (piece ^ (row & 1)) * 16
                             : wide_piece_at(row, piece);
}

template <Format F, int kM, int kN>
struct FewLayout {
  static constexpr int kRows = 16 * kM, kTokens = 8 * kN;
  static constexpr int kTokensAt = kRows * 64 * pieces_of(F);
  static constexpr int kScalesAt = kTokensAt + kTokens * 256;
  static constexpr int kStageBytes = kScalesAt + (F == Format::kBF16 ? 0 : 4 * kRows);
  static constexpr int kShare = 113 << 10;  // of two blocks
  static constexpr int kStages = 3 * kStageBytes * kProductWarps <= kShare ? 3 : 2;
  static constexpr int kSumStride = kRows + 4;  // 2 (rows + 4) = 8 mod 32: fragments are written without bank conflicts
  static constexpr int kPart = kTokens * kSumStride;
  static constexpr int kRing = kStages * kStageBytes * kProductWarps, kParts = 4 * kProductWarps * kPart;
  static constexpr int kBytes = kRing > kParts ? kRing : kParts;
  static_assert(kBytes <= 227 << 10 && kStageBytes % 16 == 0);
};

template <Format F, int kM, int kN, typename Task>
__global__ void __launch_bounds__(kProductThreads, FewLayout<F, kM, kN>::kBytes <= 113 << 10 ? 2 : 1)
    few_rows_kernel(Task task) {
  allow_next();
  if constexpr (Task::kIsPlanned) wait_for_previous();
  using L = FewLayout<F, kM, kN>;
  extern __shared__ __align__(128) uint8_t shared[];
  WeightTile weights;
  TokenTile tokens;
  if (!task.locate(L::kRows, L::kTokens, weights, tokens)) return;
  const int cols = task.cols, segment = segment_of(cols), num_segments = (cols + segment - 1) / segment;
  const int num_groups = cols / 32;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, q = lane % 4, r = lane / 4;
  if (warp >= num_segments) wait_for_previous();
  constexpr int kPieces = pieces_of(F);
  float c[kM][kN][4] = {};
  if (warp < num_segments) {
    uint8_t* ring = shared + warp * L::kStages * L::kStageBytes;
    const uint32_t ring_at = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
    const int first_step = warp * segment / 128;
    const int num_steps = (min(cols, (warp + 1) * segment) + 127) / 128 - first_step;

    // A lane copies the same piece of several rows.
    constexpr int kPerRow = 4 * kPieces, kRowsAtOnce = kWarp / kPerRow, kCopies = L::kRows / kRowsAtOnce;
    const int part = lane % kPerRow, copy_row = lane / kPerRow;
    const uint8_t* from[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      from[i] = RowPointer<F>(weights, copy_row + kRowsAtOnce * i, cols).codes + 16 * part;
    const uint8_t* scales[kM];  // of rows lane, lane + 32 ..
#pragma unroll
    for (int m = 0; m < kM; m += 2) scales[m] = RowPointer<F>(weights, min(16 * m + lane, L::kRows - 1), cols).scales;
    const int token_part = lane % 16;
    const bool has_whole_steps = cols % 128 == 0;
    auto copy_weights = [&](int step) {
      const int group = 4 * (first_step + step);
      const uint32_t to = ring_at + step % L::kStages * L::kStageBytes;
      const bool exists = group + part / kPieces < num_groups;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_async(to + weight_piece_at<F>(copy_row + kRowsAtOnce * i, part),
                   from[i] + (exists ? group * kPieces * 16 : 0), exists);
      }
    };
    auto copy_rest = [&](int step) {
      const int group = 4 * (first_step + step);
      const uint32_t to = ring_at + step % L::kStages * L::kStageBytes;
      const bool has_token = group + token_part / 4 < num_groups;
      for (int i = lane / 16; i < tokens.count; i += 2) {
        copy_async(to + L::kTokensAt + wide_piece_at(i, token_part),
                   tokens.row(i) + (has_token ? 32 * group + 8 * token_part : 0), has_token);
      }
      if constexpr (F != Format::kBF16) {
#pragma unroll
        for (int m = 0; m < kM; m += 2) {
          if (16 * m + lane >= L::kRows) break;
          const uint32_t place = L::kScalesAt + 4 * (16 * m + lane);
          if (has_whole_steps) {
            copy_word_async(to + place, scales[m] + group);
          } else {
            uint32_t word = 0;
            for (int g = 0; g < 4 && group + g < num_groups; ++g)
              word |= static_cast<uint32_t>(scales[m][group + g]) << 8 * g;
            *reinterpret_cast<uint32_t*>(ring + step % L::kStages * L::kStageBytes + place) = word;
          }
        }
      }
    };
    // Weights do not depend on what runs before; tokens do.
#pragma unroll
    for (int s = 0; s < L::kStages - 1; ++s) {
      if (s < num_steps) copy_weights(s);
    }
    if constexpr (!Task::kIsPlanned) wait_for_previous();
#pragma unroll
    for (int s = 0; s < L::kStages - 1; ++s) {
      if (s < num_steps) copy_rest(s);
      commit_copies();
    }
    for (int step = 0; step < num_steps; ++step) {
      wait_copies<L::kStages - 2>();
      __syncwarp();
      if (step + L::kStages - 1 < num_steps) {
        copy_weights(step + L::kStages - 1);
        copy_rest(step + L::kStages - 1);
      }
      commit_copies();
      const uint8_t* stage = ring + step % L::kStages * L::kStageBytes;
      uint32_t factor[kM][2];
      uint4 raw[kM][2][kPieces];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = 16 * m + 8 * i;
          factor[m][i] = F == Format::kBF16 ? 0 : scale_factor<F>(stage[L::kScalesAt + 4 * (row + r) + q]);
          if constexpr (F != Format::kBF16) {
#pragma unroll
            for (int k = 0; k < kPieces; ++k)
              raw[m][i][k] = *reinterpret_cast<const uint4*>(stage + weight_piece_at<F>(row + r, kPieces * q + k));
          }
        }
      }
      unrolled<4>([&](auto pair) {  // two steps of 16 columns
        constexpr int kPair = decltype(pair)::value;
        uint32_t a[2][kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if constexpr (F == Format::kBF16) {
              const uint4 w =
                  *reinterpret_cast<const uint4*>(stage + weight_piece_at<F>(16 * m + 8 * i + r, 4 * q + kPair));
              a[0][m][i] = w.x, a[0][m][i + 2] = w.y, a[1][m][i] = w.z, a[1][m][i + 2] = w.w;
            } else {
              expand<F, 2 * kPair>(raw[m][i], factor[m][i], a[0][m][i], a[0][m][i + 2]);
              expand<F, 2 * kPair + 1>(raw[m][i], factor[m][i], a[1][m][i], a[1][m][i + 2]);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const int token = min(8 * n + r, tokens.count - 1);
          const uint4 b = *reinterpret_cast<const uint4*>(stage + L::kTokensAt + wide_piece_at(token, 4 * q + kPair));
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            mma(c[m][n], a[0][m], b.x, b.y);
            mma(c[m][n], a[1][m], b.z, b.w);
          }
        }
      });
    }
    wait_copies<0>();
  }
  __syncthreads();
  float* parts = reinterpret_cast<float*>(shared);  // [segments][tokens][rows]
  if (warp < num_segments) {
    float* part = parts + warp * L::kPart;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          part[(8 * n + 2 * q + i % 2) * L::kSumStride + 16 * m + r + 8 * (i / 2)] = c[m][n][i];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < L::kPart; i += kProductThreads) {
    float sum = parts[i];
    for (int s = 1; s < num_segments; ++s) sum += parts[s * L::kPart + i];
    parts[i] = sum * inverse_unit(F);
  }
  __syncthreads();
  task.finish(SumTile{parts, L::kSumStride}, L::kRows, tokens);
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
  if (!task.locate(L::kRows, L::kTokens, weights, tokens)) return;
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
      copy_async(to_tokens + token * kTokenRowStride + piece / 4 * kTokenPieceStride + piece % 4 * 16, from, exists);
    }
    constexpr int kPerRow = 4 * kPieces, kRowsAtOnce = kProductThreads / kPerRow;
    const int part = threadIdx.x % kPerRow;
    const bool is_there = first_group + part / kPieces < num_groups;
#pragma unroll
    for (int i = 0; i < L::kRows / kRowsAtOnce; ++i) {
      const int row = threadIdx.x / kPerRow + kRowsAtOnce * i;
      const RowPointer<F> pointer(weights, row, cols);
      const uint8_t* from = pointer.codes + (is_there ? (first_group * kPieces + part) * 16 : 0);
      copy_async(
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
    if constexpr (F != Format::kBF16) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int k = 0; k < kPieces; ++k) {
            raw[m][i][k] =
                *reinterpret_cast<const uint4*>(weight_at + (16 * m + 8 * i) * weight_row_stride(F) + 16 * k);
          }
        }
      }
    }
    unrolled<4>([&](auto pair) {
      constexpr int kPair = decltype(pair)::value;
      uint32_t a[2][kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (F == Format::kBF16) {
            const uint4 w =
                *reinterpret_cast<const uint4*>(weight_at + (16 * m + 8 * i) * weight_row_stride(F) + 16 * kPair);
            a[0][m][i] = w.x, a[0][m][i + 2] = w.y, a[1][m][i] = w.z, a[1][m][i + 2] = w.w;
          } else {
            expand<F, 2 * kPair>(raw[m][i], factor[m][i], a[0][m][i], a[0][m][i + 2]);
            expand<F, 2 * kPair + 1>(raw[m][i], factor[m][i], a[1][m][i], a[1][m][i + 2]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4 b = *reinterpret_cast<const uint4*>(token_at + 8 * n * kTokenRowStride + 16 * kPair);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma(c[m][n], a[0][m], b.x, b.y);
          mma(c[m][n], a[1][m], b.z, b.w);
        }
      }
    });
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
  task.finish(sums, L::kRows, tokens);
}

// ---- launches -------------------------------------------------------------------------------------------------------

template <Format F, int kM, int kN, typename Task>
void launch_few(cudaStream_t stream, dim3 grid, const Task& task) {
  constexpr int kBytes = FewLayout<F, kM, kN>::kBytes;
  static const cudaError_t status =
      cudaFuncSetAttribute(few_rows_kernel<F, kM, kN, Task>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  deepinfer::cuda::check(status, "few_rows");
  start("few_rows", few_rows_kernel<F, kM, kN, Task>, grid, kProductThreads, kBytes, stream, task);
}
template <Format F, int kM, int kN, typename Task>
void launch_many(cudaStream_t stream, dim3 grid, const Task& task) {
  constexpr int kBytes = ManyLayout<F, kM, kN>::kBytes;
  static const cudaError_t status =
      cudaFuncSetAttribute(many_rows_kernel<F, kM, kN, Task>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  deepinfer::cuda::check(status, "many_rows");
  start("many_rows", many_rows_kernel<F, kM, kN, Task>, grid, kProductThreads, kBytes, stream, task);
}

}  // namespace deepinfer::kernels::cuda
