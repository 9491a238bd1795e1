// Products of few tokens: blocks that stay, and weights that never stop coming.
//
//   A block takes tile after tile of up to 8 kN tokens and 1, 2, 4 or 8 parts of 16 kM weight rows; the warps of a part
//   share out the segments of its columns (product.cuh). A warp has a ring of its own in shared memory that it fills
//   through the borders of tiles: a stage is 128 columns of 16 kM rows, their scales and the tokens, so memory is asked
//   for the next tile while this one is added up. Tokens lie in natural order and are put into the order of the codes
//   in registers. Where all tiles have the same tokens and these fit, a block keeps them, rounded on the way if the
//   task wants that.
//
//   `Task` says which tiles there are (num_tiles, locate) and what happens to their sums (finish).
#pragma once

#include "kernels/cuda/smxx/product.cuh"

namespace deepinfer::kernels::cuda {

// A stage: weights, then 4 scales a row, then tokens. Pieces of 16 bytes are exchanged within a row so that 8
// neighbouring lanes read 8 different places.
template <Format F, int kM>
struct FewStage {
  static constexpr int kRows = 16 * kM;
  static constexpr int kScaleRows = F == Format::kBF16 ? 0 : kRows;
  static constexpr int kScalesAt = kRows * 64 * pieces_of(F);
  static constexpr int kTokensAt = kScalesAt + 4 * kScaleRows;
  __host__ __device__ static constexpr int bytes(int tokens) { return kTokensAt + tokens * 256; }
};
// Floats between the sums of two tokens: 2 (rows + 4) = 8 mod 32, so fragments are written without bank conflicts.
__host__ __device__ constexpr int few_sum_stride(int rows) {
  return rows + 4;
}
__host__ __device__ constexpr int num_segments_of(int cols) {
  return (cols + segment_of(cols) - 1) / segment_of(cols);
}
constexpr int few_sum_bytes(int cols, int rows, int tokens) {
  return 4 * num_segments_of(cols) * tokens * few_sum_stride(rows);
}
// Segments of a part that each of its warps takes, one after the other.
__host__ __device__ constexpr int segments_a_warp(int num_segments, int parts) {
  const int warps = kProductWarps / parts;
  return (num_segments + warps - 1) / warps;
}

// How a launch shares out the memory of a multiprocessor.
struct FewMemory {
  int tokens;      // of a tile at most
  int ring_bytes;  // of a warp
  int sums_at;     // two tiles' sums
  int kept_at;     // the tokens of all tiles [steps of 128 columns][tokens][256 bytes]; 0: they come with the stages
};

constexpr int kMaxStages = 4;
template <int kMost = kMaxStages - 2>
__device__ __forceinline__ void wait_all_but(int pending) {
  if constexpr (kMost == 0) {
    wait_copies<0>();
  } else {
    if (pending >= kMost) return wait_copies<kMost>();
    wait_all_but<kMost - 1>(pending);
  }
}

// 8 neighbouring columns of a token in the order in which two codes leave a masked word together.
template <Format F>
__device__ __forceinline__ uint4 in_code_order(const uint4& v) {
  if constexpr (F == Format::kFp8) {
    return {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x5410),
            __byte_perm(v.z, v.w, 0x7632)};
  } else if constexpr (F == Format::kFp4) {
    return {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
            __byte_perm(v.y, v.w, 0x7632)};
  } else {
    return v;
  }
}

// The tiles of a task in a row: all weight rows of the first tokens, then those of the next.
template <typename Task>
struct FewTask : Task {
  int row_tiles, tile_tokens;
  int parts;        // of a tile's rows: 1, 2, 4 or 8
  int first_block;  // takes the first tile
  __device__ int num_tiles() const { return row_tiles * this->num_token_tiles(tile_tokens); }
  __device__ int first_tile() const {
    const int blocks = static_cast<int>(gridDim.x);
    return (static_cast<int>(blockIdx.x) + blocks - first_block % blocks) % blocks;
  }
  __device__ TileAt at(int tile) const { return {tile % row_tiles, tile / row_tiles}; }
};

// The first bytes of a word, zeros after them. Apart, so that it does not lie in the way of the loop.
inline __device__ __noinline__ void copy_bytes(uint8_t* to, const uint8_t* from, int count) {
  for (int i = 0; i < 4; ++i) to[i] = i < count ? from[i] : 0;
}

// What a lane copies of 16 kM rows of a tile: the same piece of several rows, words of scales, some tokens.
template <Format F, int kM>
struct FewSource {
  using S = FewStage<F, kM>;
  static constexpr int kPerRow = 4 * pieces_of(F), kRowsAtOnce = kWarp / kPerRow;
  static constexpr int kCopies = S::kRows / kRowsAtOnce, kScaleCopies = (S::kScaleRows + kWarp - 1) / kWarp;
  const uint8_t *codes, *scales;  // of the stack; rows of one source lie in one
  uint32_t code_offset[kCopies], scale_offset[kScaleCopies == 0 ? 1 : kScaleCopies];
  const Bf16* x;
  int64_t x_stride;
  int num_tokens, token_row;  // the row of token `lane`

  template <typename Task>
  __device__ __forceinline__ FewSource(const Task& task, int tile, int part_of_rows, int num_parts) {
    WeightTile w;
    TokenTile tokens;
    task.locate(task.at(tile), S::kRows * num_parts, task.tile_tokens, w, tokens);
    const int lane = threadIdx.x % kWarp, first = S::kRows * part_of_rows;
    const bool is_second = first >= w.half;
    const int begin = is_second ? first - w.half : first, last = (is_second ? w.num_rows[1] : w.num_rows[0]) - 1;
    codes = (is_second ? w.codes[1] : w.codes[0]) + 16 * (lane % kPerRow);
    scales = is_second ? w.scales[1] : w.scales[0];
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      code_offset[i] = static_cast<uint32_t>(min(begin + lane / kPerRow + kRowsAtOnce * i, last)) *
                       static_cast<uint32_t>(row_bytes_of(F, task.cols));
#pragma unroll
    for (int i = 0; i < kScaleCopies; ++i)
      scale_offset[i] = static_cast<uint32_t>(min(begin + min(kWarp * i + lane, S::kRows - 1), last) >> w.scale_shift) *
                        static_cast<uint32_t>(task.cols / 32);
    x = tokens.x;
    x_stride = tokens.stride;
    num_tokens = tokens.count;
    token_row = tokens.row_number(lane);
  }
  // Columns 32 group .. + 127.
  __device__ __forceinline__ void copy_weights(int group, int num_groups, uint8_t* stage) const {
    const int lane = threadIdx.x % kWarp, part = lane % kPerRow;
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(stage));
    const bool exists = group + part / pieces_of(F) < num_groups;
    const uint8_t* from = codes + (exists ? group * pieces_of(F) * 16 : 0);
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      copy_async_or_clear(to + weight_piece_at<F>(lane / kPerRow + kRowsAtOnce * i, part), from + code_offset[i],
                          exists);
#pragma unroll
    for (int i = 0; i < kScaleCopies; ++i) {
      const int row = kWarp * i + lane;
      if (row >= S::kScaleRows) break;
      const uint8_t* word_at = scales + scale_offset[i] + group;
      if (num_groups % 4 == 0) {
        copy_word_async(to + S::kScalesAt + 4 * row, word_at);
      } else {
        copy_bytes(stage + S::kScalesAt + 4 * row, word_at, min(4, num_groups - group));
      }
    }
  }
  __device__ __forceinline__ void copy_tokens(int group, int num_groups, uint8_t* stage) const {
    const int lane = threadIdx.x % kWarp, part = lane % 16;
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(stage)) + S::kTokensAt;
    const bool exists = group + part / 4 < num_groups;
    const Bf16* from = x + (exists ? 32 * group + 8 * part : 0);
#pragma unroll 1
    for (int first = 0; first < num_tokens; first += 2) {
      const int i = first + lane / 16, row = __shfl_sync(0xffffffffu, token_row, i);
      if (i < num_tokens) copy_async_or_clear(to + wide_piece_at(i, part), from + row * x_stride, exists);
    }
  }
};

// The place of a warp in its sequence of stages.
struct FewCursor {
  int tile, step = 0, stage = 0;
};

// One stage of products: c[kM][kN] += weights x tokens.
template <Format F, int kM, int kN>
__device__ __forceinline__ void multiply_stage(const uint8_t* stage, const uint8_t* tokens, int num_tokens,
                                               float (&c)[kM][kN][4]) {
  using S = FewStage<F, kM>;
  const int lane = threadIdx.x % kWarp, q = lane % 4, r = lane / 4;
  uint32_t factor[kM][2];
  uint4 raw[kM][2][pieces_of(F)];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * m + 8 * i + r;
      factor[m][i] = F == Format::kBF16 ? 0 : scale_factor<F>(stage[S::kScalesAt + 4 * row + q]);
#pragma unroll
      for (int k = 0; k < pieces_of(F); ++k)
        raw[m][i][k] = *reinterpret_cast<const uint4*>(stage + weight_piece_at<F>(row, pieces_of(F) * q + k));
    }
  }
  auto tokens_at = [&](int n, int i) {
    const int token = min(8 * n + r, num_tokens - 1);
    return in_code_order<F>(*reinterpret_cast<const uint4*>(tokens + wide_piece_at(token, 4 * q + i)));
  };
  multiply_columns<F>(raw, factor, tokens_at, c);
}

// ---- FP8 weights and tokens rounded to e4m3 as f16 ------------------------------------------------------------------
//
//   Codes of both sides are exact in f16, and one instruction makes two of them. What is left is a power of two for
//   each scale group, kHalfUnit x weight scale x token scale, which goes to the tokens. If it lies within 2^-14 .. 2^7
//   all products and what is added up are those of the BF16 path times a power of two, so the bits are the same; a
//   stage where it does not is left to that path, and so is the rest of its segment.

constexpr int kHalfUnit = 15;            // exponent
constexpr int16_t kEmptyGroup = 0x7fff;  // of codes that are all zero

__device__ __forceinline__ void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Columns 0 and 2, then 1 and 3 of four codes, as `expand` hands them to a step.
__device__ __forceinline__ void expand_half(uint32_t codes, uint32_t& low, uint32_t& high) {
  const uint32_t turned = __byte_perm(codes, 0, 0x3120);
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(turned));
}
__device__ __forceinline__ uint32_t multiply_half(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// 16 weight rows of one scale row x 8 kN tokens.
template <int kN>
struct HalfSums {
  float c[1][kN][4];
};
// Where the codes and the scales of the tokens of a stage lie.
struct KeptCodes {
  const uint8_t* codes;   // [tokens][256 bytes], pieces in the order of expanded codes
  const int16_t* scales;  // [4 groups][tokens]
  int tokens, count;      // places, those used
};

// One stage, or false where the powers of two do not fit.
template <int kN>
__device__ __forceinline__ bool multiply_halves(const uint8_t* stage, const KeptCodes& kept, HalfSums<kN>& sums) {
  using S = FewStage<Format::kFp8, 1>;
  const int lane = threadIdx.x % kWarp, q = lane % 4, r = lane / 4;
  const int weight_scale = stage[S::kScalesAt + 4 * r + q];
  uint32_t factor[kN];
  bool fits = true;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int token_scale = kept.scales[q * kept.tokens + min(8 * n + r, kept.count - 1)];
    const int exponent = token_scale == kEmptyGroup ? 0 : weight_scale + token_scale - 2 * 127 + kHalfUnit;
    fits = fits && exponent >= -14 && exponent <= 7;
    factor[n] = static_cast<uint32_t>(exponent + 15) * 0x04000400u;
  }
  if (!__all_sync(0xffffffffu, fits)) return false;
  uint4 raw[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
      raw[i][k] = *reinterpret_cast<const uint4*>(stage + weight_piece_at<Format::kFp8>(8 * i + r, 2 * q + k));
  }
  const uint32_t *low = reinterpret_cast<const uint32_t*>(raw[0]), *high = reinterpret_cast<const uint32_t*>(raw[1]);
  unrolled<4>([&](auto pair) {
    constexpr int kPair = decltype(pair)::value;
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      expand_half(low[2 * kPair + i], a[i][0], a[i][2]);
      expand_half(high[2 * kPair + i], a[i][1], a[i][3]);
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int token = min(8 * n + r, kept.count - 1);
      const uint4 v = *reinterpret_cast<const uint4*>(kept.codes + wide_piece_at(token, 4 * q + kPair));
      mma_half(sums.c[0][n], a[0], multiply_half(v.x, factor[n]), multiply_half(v.y, factor[n]));
      mma_half(sums.c[0][n], a[1], multiply_half(v.z, factor[n]), multiply_half(v.w, factor[n]));
    }
  });
  return true;
}

// From the unit of the f16 path to that of the BF16 path.
template <int kN>
__device__ __forceinline__ void leave_halves(HalfSums<kN>& sums) {
  const float factor = __uint_as_float((127 - 32 - kHalfUnit) << 23);  // 1 / inverse_unit, 2^-kHalfUnit
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.c[0][n][i] *= factor;
  }
}

// The same stage by the BF16 path. Apart, since it hardly ever runs.
template <int kN>
__device__ __noinline__ HalfSums<kN> multiply_codes(const uint8_t* stage, KeptCodes kept, HalfSums<kN> sums) {
  using S = FewStage<Format::kFp8, 1>;
  const int lane = threadIdx.x % kWarp, q = lane % 4, r = lane / 4;
  uint4 raw[1][2][2];
  uint32_t factor[1][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    factor[0][i] = scale_factor<Format::kFp8>(stage[S::kScalesAt + 4 * (8 * i + r) + q]);
#pragma unroll
    for (int k = 0; k < 2; ++k)
      raw[0][i][k] = *reinterpret_cast<const uint4*>(stage + weight_piece_at<Format::kFp8>(8 * i + r, 2 * q + k));
  }
  auto tokens_at = [&](int n, int i) {
    const int token = min(8 * n + r, kept.count - 1), scale = kept.scales[q * kept.tokens + token];
    const float value = scale == kEmptyGroup ? 0.f : ue8m0_value(static_cast<uint32_t>(scale));
    const uint4 codes = *reinterpret_cast<const uint4*>(kept.codes + wide_piece_at(token, 4 * q + i));
    uint4 v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 f = __half22float2(reinterpret_cast<const __half2*>(&codes)[k]);
      reinterpret_cast<__nv_bfloat162*>(&v)[k] = __floats2bfloat162_rn(f.x * value, f.y * value);
    }
    return v;
  };
  multiply_columns<Format::kFp8>(raw, factor, tokens_at, sums.c);
  return sums;
}

// The codes of all tokens into shared memory, a thread a scale group at a time, then their scales.
template <typename Task>
__device__ void keep_codes(const Task& task, const FewMemory& memory, uint8_t* shared) {
  const TokenTile tokens = task.tokens_of({0, 0}, task.tile_tokens);
  const int num_groups = task.cols / 32, all_groups = (num_groups + 3) / 4 * 4;
  auto* scales = reinterpret_cast<int16_t*>(shared + memory.kept_at + all_groups / 4 * memory.tokens * 256);
  for (int i = threadIdx.x; i < tokens.count * all_groups; i += kProductThreads) {
    const int token = i / all_groups, group = i % all_groups;
    uint4 v[4] = {};
    int16_t scale = kEmptyGroup;
    if (group < num_groups) {
      const uint4* from = reinterpret_cast<const uint4*>(tokens.row(token) + 32 * group);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = from[k];
      auto* pairs = reinterpret_cast<__nv_bfloat162*>(v);
      const float largest = largest_of<16>(pairs);
      const uint32_t exponent = ue8m0_ceil(fmaxf(largest, kActFloor), kInvE4M3);
      const float inverse = 1.f / ue8m0_value(exponent);
      if (largest != 0) scale = static_cast<int16_t>(exponent);
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        const float2 f = __bfloat1622float2(pairs[k]);
        const __nv_fp8x2_storage_t codes =
            __nv_cvt_float2_to_fp8x2({f.x * inverse, f.y * inverse}, __NV_SATFINITE, __NV_E4M3);
        reinterpret_cast<__half2_raw*>(v)[k] = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
      }
    }
    uint8_t* to = shared + memory.kept_at + group / 4 * memory.tokens * 256;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      *reinterpret_cast<uint4*>(to + wide_piece_at(token, group % 4 * 4 + k)) = in_code_order<Format::kFp8>(v[k]);
    scales[group * memory.tokens + token] = scale;
  }
  __syncthreads();
}

// All columns of the tokens into shared memory, a thread a scale group at a time.
template <typename Task>
__device__ void keep_tokens(const Task& task, const FewMemory& memory, bool rounds, uint8_t* shared) {
  const TokenTile tokens = task.tokens_of({0, 0}, task.tile_tokens);
  const int num_groups = task.cols / 32;
  for (int i = threadIdx.x; i < tokens.count * num_groups; i += kProductThreads) {
    const int token = i / num_groups, group = i % num_groups;
    const uint4* from = reinterpret_cast<const uint4*>(tokens.row(token) + 32 * group);
    uint4 v[4] = {from[0], from[1], from[2], from[3]};
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(v);
    if (rounds) round_pairs<16>(pairs, largest_of<16>(pairs));
    uint8_t* to = shared + memory.kept_at + group / 4 * memory.tokens * 256;
#pragma unroll
    for (int k = 0; k < 4; ++k) *reinterpret_cast<uint4*>(to + wide_piece_at(token, group % 4 * 4 + k)) = v[k];
  }
  // Beyond the last column: zeros, where weights are zeros as well.
  for (int i = threadIdx.x; i < tokens.count * (-num_groups & 3); i += kProductThreads) {
    const int token = i % tokens.count, group = num_groups + i / tokens.count;
    uint8_t* to = shared + memory.kept_at + group / 4 * memory.tokens * 256;
#pragma unroll
    for (int k = 0; k < 4; ++k) *reinterpret_cast<uint4*>(to + wide_piece_at(token, group % 4 * 4 + k)) = {};
  }
  __syncthreads();
}

// All tiles of the task that fall to this block. `has_waited`: what the task reads is there already. With kHalves the
// tokens are kept as codes (FP8, kM = 1, tokens rounded, scale rows of 32 weight rows).
template <Format F, int kM, int kN, bool kHalves = false, typename Task>
__device__ __forceinline__ void few_rows(const FewTask<Task>& task, const FewMemory& memory, uint8_t* shared,
                                         bool rounds, bool has_waited) {
  using S = FewStage<F, kM>;
  const int tile_rows = S::kRows * task.parts, sum_stride = few_sum_stride(tile_rows);
  const int cols = task.cols, segment = segment_of(cols), num_segments = num_segments_of(cols);
  const int num_groups = cols / 32, num_tiles = task.num_tiles();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, q = lane % 4, r = lane / 4;
  const int warps_a_part = kProductWarps / task.parts, my_segments = segments_a_warp(num_segments, task.parts);
  const int part = warp / warps_a_part, first_segment = warp % warps_a_part * my_segments;
  const int first_group = first_segment * segment / 32;
  // Of all my segments: they are neighbours.
  const int num_steps = first_segment < num_segments
                            ? (min(cols, (first_segment + my_segments) * segment) + 127) / 128 - first_group / 4
                            : 0;
  const bool keeps = memory.kept_at > 0;
  const int stage_bytes = S::bytes(keeps ? 0 : memory.tokens);
  const int num_stages = min(memory.ring_bytes / stage_bytes, kMaxStages);
  uint8_t* ring = shared + warp * memory.ring_bytes;
  const int part_floats = memory.tokens * sum_stride;
  using Source = FewSource<F, kM>;
  FewCursor load{task.first_tile()};
  int tile = load.tile, stage = 0;
  if (tile >= num_tiles) {
    if (!has_waited) wait_for_previous();
    return;
  }

  Source source(task, load.tile, part, task.parts);
  auto copy = [&](FewCursor& at, bool weights, bool tokens) {
    if (num_steps == 0 || at.tile >= num_tiles) return;
    const int group = first_group + 4 * at.step;
    if (weights) source.copy_weights(group, num_groups, ring + at.stage * stage_bytes);
    if (tokens && !keeps) source.copy_tokens(group, num_groups, ring + at.stage * stage_bytes);
    at.stage = at.stage + 1 == num_stages ? 0 : at.stage + 1;
    if (__builtin_expect(++at.step < num_steps, 1)) return;  // keeps the rest out of the loop's way
    at.step = 0;
    at.tile += static_cast<int>(gridDim.x);
    if (at.tile < num_tiles) source = Source(task, at.tile, part, task.parts);
  };
  if (!has_waited) {  // weights do not depend on what runs before; tokens do
    FewCursor early = load;
    for (int s = 0; s < num_stages - 1; ++s) copy(early, true, false);
    wait_for_previous();
    source = Source(task, load.tile, part, task.parts);
  }
  for (int s = 0; s < num_stages - 1; ++s) {
    copy(load, has_waited, true);
    commit_copies();
  }
  if constexpr (kHalves) {
    keep_codes(task, memory, shared);
  } else if (keeps) {
    keep_tokens(task, memory, rounds, shared);
  }

  for (int parity = 0; tile < num_tiles; parity ^= 1, tile += static_cast<int>(gridDim.x)) {
    const TileAt at = task.at(tile);
    const TokenTile tokens = task.tokens_of(at, task.tile_tokens);
    // [segments][tokens][rows]; the sums of the tile before may still be read.
    float* sums = reinterpret_cast<float*>(shared + memory.sums_at) + parity * num_segments * part_floats;
    float* mine = sums + first_segment * part_floats;
#pragma unroll 1
    for (int step = 0; step < num_steps; mine += part_floats) {
      const int end = min(num_steps, step + segment / 128);
      float c[kM][kN][4] = {};
      [[maybe_unused]] bool are_halves = true;  // the sums so far
#pragma unroll 1
      for (; step < end; ++step) {
        wait_all_but(num_stages - 2);
        __syncwarp();
        copy(load, true, true);
        commit_copies();
        const uint8_t* from = ring + stage * stage_bytes;
        const uint8_t* token_at =
            keeps ? shared + memory.kept_at + (first_group / 4 + step) * memory.tokens * 256 : from + S::kTokensAt;
        if constexpr (kHalves) {
          auto& halves = reinterpret_cast<HalfSums<kN>&>(c);
          const int all_steps = (num_groups + 3) / 4, at_step = first_group / 4 + step;
          const auto* scales =
              reinterpret_cast<const int16_t*>(shared + memory.kept_at + all_steps * memory.tokens * 256);
          const KeptCodes kept{token_at, scales + 4 * at_step * memory.tokens, memory.tokens, tokens.count};
          if (!are_halves || !multiply_halves<kN>(from, kept, halves)) {
            if (are_halves) leave_halves<kN>(halves);
            are_halves = false;
            halves = multiply_codes<kN>(from, kept, halves);
          }
        } else {
          multiply_stage<F, kM, kN>(from, token_at, tokens.count, c);
        }
        stage = stage + 1 == num_stages ? 0 : stage + 1;
      }
      if constexpr (kHalves) {
        if (are_halves) leave_halves<kN>(reinterpret_cast<HalfSums<kN>&>(c));
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int token = 8 * n + 2 * q + i % 2, row = S::kRows * part + 16 * m + r + 8 * (i / 2);
            if (token < tokens.count) mine[token * sum_stride + row] = c[m][n][i];
          }
        }
      }
    }
    __syncthreads();
    task.finish(at, SumParts{{sums, sum_stride}, num_segments, part_floats, inverse_unit(F)}, tile_rows, tokens,
                static_cast<int>(threadIdx.x));
  }
  wait_copies<0>();
  __syncthreads();
}

// Two blocks a multiprocessor if their rings have two stages then, else one with up to kMaxStages.
struct FewPlan {
  FewMemory memory;
  int shared_bytes, blocks_per_multiprocessor;
  bool fits;  // two stages at least
};
inline FewPlan plan_few_memory(int stage_bytes, int sum_bytes, int kept_bytes, int tokens) {
  constexpr int kAll = 228 << 10, kOfSystem = 1 << 10;  // of a multiprocessor, of each block
  auto stages = [&](int blocks) {
    return (kAll / blocks - kOfSystem - 2 * sum_bytes - kept_bytes) / (kProductWarps * stage_bytes);
  };
  const int blocks = stages(2) >= 2 ? 2 : 1;
  const int count = std::min(stages(blocks), kMaxStages);
  FewPlan plan;
  const int ring = count * stage_bytes, sums_at = ring * kProductWarps, kept_at = sums_at + 2 * sum_bytes;
  plan.memory = {tokens, ring, sums_at, kept_bytes > 0 ? kept_at : 0};
  plan.shared_bytes = kept_at + kept_bytes;
  plan.blocks_per_multiprocessor = blocks;
  plan.fits = count >= 2;
  return plan;
}

// As many blocks as the machine has places for, or one a tile.
template <typename... P, typename... A>
void launch_persistent(const char* name, void (*kernel)(P...), int num_tiles, const FewPlan& plan, cudaStream_t stream,
                       const A&... args) {
  deepinfer::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
                         name);
  const int places = plan.blocks_per_multiprocessor * num_multiprocessors();
  start(name, kernel, static_cast<unsigned>(std::clamp(num_tiles, 1, places)), kProductThreads,
        static_cast<size_t>(plan.shared_bytes), stream, args...);
}

}  // namespace deepinfer::kernels::cuda
