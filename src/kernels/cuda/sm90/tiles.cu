// Products of tiles of 128 tokens with Hopper's warpgroup instruction; the same bits as smxx/product.cuh (see wide.cu).
//
//   A block takes tiles of 128 weight rows and 128 tokens. Four warps bring what is needed: coded weights and their
//   scales with small asynchronous copies, tokens as whole blocks of kTiles. Two warpgroups take 64 rows each: they
//   expand the codes of a stage in registers while those of the stage before are multiplied.
//
//   Stages of 128 columns: [tokens][weights][scales, 4 a row]. `full` counts a stage's copies in, `empty` the warps
//   that have done with it.
#include "kernels/cuda/sm90/warpgroup.cuh"
#include "kernels/cuda/smxx/tasks.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kTileRows = 128, kN = kTileTokens / 8, kSteps = 8;  // of 16 columns in a stage
constexpr int kCopyThreads = 128, kThreads = kProductThreads + kCopyThreads;
constexpr int kCopyRegisters = 40, kProductRegisters = 232;  // of a thread
constexpr int kSumStride = kTileRows + 4, kSumBytes = 4 * kTileTokens * kSumStride;
constexpr int kTokenBytes = kTileTokens * 256, kBlockElements = kTokenBytes / 2;
constexpr int kAlignment = 1024;  // of swizzled rows
// Tiles of so many neighbouring token tiles go through the weight rows together: both sides are then read from memory
// few times.
constexpr int kTogether = 8;

template <Format F>
struct Stage {
  static constexpr int kWeightsAt = kTokenBytes, kScalesAt = kWeightsAt + kTileRows * 64 * pieces_of(F);
  static constexpr int kUsed = kScalesAt + (F == Format::kBF16 ? 0 : 4 * kTileRows);
  static constexpr int kBytes = (kUsed + kAlignment - 1) / kAlignment * kAlignment;
  static constexpr int kCount = ((226 << 10) - kAlignment - kSumBytes) / kBytes;  // 1 KiB is left for the barriers
  static constexpr int kAllBytes = kCount * kBytes + kSumBytes + kAlignment;
  static_assert(kCount >= 2);
};

// ---- barriers of copies ---------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void wait_barrier(const uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Arrives when the thread's copies so far are there.
__device__ __forceinline__ void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Without a branch: it stands between products in flight.
__device__ __forceinline__ void arrive_if(bool arrives, uint64_t* barrier) {
  asm volatile(
      "{\n.reg .pred arrives;\nsetp.ne.u32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(shared_address(barrier)),
      "r"(static_cast<uint32_t>(arrives))
      : "memory");
}
// Counted in at the barrier.
__device__ __forceinline__ void copy_block(uint32_t to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// Of the two warpgroups that multiply.
__device__ __forceinline__ void product_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kProductThreads) : "memory");
}

// A place in the ring of stages.
template <int kCount>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kCount) stage = 0, parity ^= 1;
  }
};

// All tiles in the order in which blocks take them.
struct TileWalk {
  int row_tiles, token_tiles;
  __device__ int count() const { return row_tiles * token_tiles; }
  __device__ TileAt at(int i) const {
    const int first = i / (kTogether * row_tiles) * kTogether, width = min(kTogether, token_tiles - first);
    const int rest = i - first * row_tiles;
    return {rest / width, first + rest % width};
  }
};

// ---- the kernel -----------------------------------------------------------------------------------------------------

// What a thread copies of each stage: pieces of several weight rows and the scales of one.
template <Format F>
struct WeightCopies {
  static constexpr int kPerRow = 4 * pieces_of(F), kRowsAtOnce = kCopyThreads / kPerRow;
  static constexpr int kCopies = kTileRows / kRowsAtOnce;
  const uint8_t *codes[2], *scales;
  uint32_t offset[kCopies];
  int half, part, first_row;

  __device__ __forceinline__ WeightCopies(const WeightTile& w, int thread, int cols)
      : codes{w.codes[0], w.codes[1]},
        scales(RowPointer<F>(w, thread, cols).scales),
        half(w.half),
        part(thread % kPerRow),
        first_row(thread / kPerRow) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      offset[i] = static_cast<uint32_t>(RowPointer<F>(w, row(i), cols).codes - base_of(row(i))) + 16 * part;
  }
  __device__ __forceinline__ int row(int i) const { return first_row + kRowsAtOnce * i; }
  __device__ __forceinline__ const uint8_t* base_of(int row) const { return row >= half ? codes[1] : codes[0]; }
  __device__ __forceinline__ void copy(int step, uint32_t stage, int thread) const {
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      copy_async(stage + Stage<F>::kWeightsAt + weight_piece_at<F>(row(i), part),
                 base_of(row(i)) + offset[i] + step * 64 * pieces_of(F));
    if constexpr (F != Format::kBF16) copy_word_async(stage + Stage<F>::kScalesAt + 4 * thread, scales + 4 * step);
  }
};

// The thread's operands of a stage: its columns of two rows, step by step.
template <Format F>
__device__ __forceinline__ void expand_stage(const uint8_t* stage, uint32_t (&a)[kSteps][4]) {
  constexpr int kPieces = pieces_of(F);
  const int lane = threadIdx.x % kWarp, q = lane % 4, first_row = threadIdx.x / kWarp * 16 + lane / 4;
  uint4 raw[2][kPieces];
  uint32_t factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + 8 * i;
    factor[i] = F == Format::kBF16 ? 0 : scale_factor<F>(stage[Stage<F>::kScalesAt + 4 * row + q]);
#pragma unroll
    for (int k = 0; k < kPieces; ++k)
      raw[i][k] =
          *reinterpret_cast<const uint4*>(stage + Stage<F>::kWeightsAt + weight_piece_at<F>(row, kPieces * q + k));
  }
  unrolled<kSteps / 2>([&](auto pair) {
    constexpr int kPair = decltype(pair)::value;
    expand_pair<F, kPair>(raw, factor, a[2 * kPair], a[2 * kPair + 1]);
  });
}
__device__ __forceinline__ void start_products(uint32_t tokens, const uint32_t (&a)[kSteps][4], float (&c)[4 * kN]) {
  begin_products();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) warpgroup_mma(c, a[i], matrix_at(tokens + i / 4 * (kTokenBytes / 2)) + i % 4 * 2);
  commit_products();
}

template <Format F, typename Task>
__global__ void __launch_bounds__(kThreads, 1) tile_kernel(Task task, int row_tiles) {
  using S = Stage<F>;
  allow_next();
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t full[S::kCount], empty[S::kCount];
  uint8_t* shared = unaligned + (kAlignment - shared_address(unaligned) % kAlignment) % kAlignment;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kCount; ++s) {
      init_barrier(full + s, kCopyThreads + 1);
      init_barrier(empty + s, kProductWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  wait_for_previous();
  const int cols = task.cols, num_steps = cols / 128, num_blocks = static_cast<int>(gridDim.x);
  const TileWalk walk{row_tiles, task.num_token_tiles(kTileTokens)};
  RingPlace<S::kCount> place;

  if (threadIdx.x >= kProductThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopyRegisters));
    const int thread = static_cast<int>(threadIdx.x) - kProductThreads;
    for (int i = static_cast<int>(blockIdx.x); i < walk.count(); i += num_blocks) {
      const TileAt at = walk.at(i);
      WeightTile weights;
      TokenTile tokens;
      task.locate(at, kTileRows, kTileTokens, weights, tokens);
      const WeightCopies<F> copies(weights, thread, cols);
      const Bf16* blocks = task.blocks_of(at);
      for (int step = 0; step < num_steps; ++step, place.next()) {
        const uint32_t stage = shared_address(shared) + place.stage * S::kBytes;
        wait_barrier(empty + place.stage, place.parity ^ 1);
        if (thread == 0) {
          arrive_expecting(full + place.stage, kTokenBytes);
          copy_block(stage, blocks + int64_t{step} * (kTokenBytes / 2), kTokenBytes, full + place.stage);
        }
        copies.copy(step, stage, thread);
        arrive_after_copies(full + place.stage);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kProductRegisters));
  const int steps_a_segment = segment_of(cols) / 128;
  const int lane = threadIdx.x % kWarp, q = lane % 4, first_row = threadIdx.x / kWarp * 16 + lane / 4;
  const SumTile sums{reinterpret_cast<float*>(shared + S::kCount * S::kBytes), kSumStride};
  uint32_t even[kSteps][4], odd[kSteps][4];
  auto expand_next = [&](uint32_t (&a)[kSteps][4]) {
    wait_barrier(full + place.stage, place.parity);
    expand_stage<F>(shared + place.stage * S::kBytes, a);
  };
  for (int i = static_cast<int>(blockIdx.x); i < walk.count(); i += num_blocks) {
    float c[4 * kN] = {}, total[4 * kN] = {};
    int left = steps_a_segment;  // steps of the segment
    expand_next(even);
    // Multiplies `now`, the operands of stage `place`, and expands those of the next meanwhile.
    auto multiply = [&](int step, const uint32_t (&now)[kSteps][4], uint32_t (&next)[kSteps][4]) {
      const int stage = place.stage;
      start_products(shared_address(shared) + stage * S::kBytes, now, c);
      place.next();
      if (step + 1 < num_steps) expand_next(next);
      wait_products<0>();
      keep_in_place(c);
      __syncwarp();
      arrive_if(lane == 0, empty + stage);
      if (--left > 0 && step + 1 < num_steps) return;
      left = steps_a_segment;
#pragma unroll
      for (int k = 0; k < 4 * kN; ++k) total[k] += c[k], c[k] = 0;
    };
    for (int step = 0; step < num_steps; step += 2) {
      multiply(step, even, odd);
      if (step + 1 < num_steps) multiply(step + 1, odd, even);
    }
    product_barrier();  // the sums of the tile before have been read
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        sums.at(first_row + 8 * (k / 2), 8 * n + 2 * q + k % 2) = total[4 * n + k] * inverse_unit(F);
    }
    product_barrier();
    const TileAt at = walk.at(i);
    task.finish(at, sums, kTileRows, task.tokens_of(at, kTileTokens), static_cast<int>(threadIdx.x));
  }
}

template <Format F, typename Task>
void launch(cudaStream_t stream, dim3 tiles, const Task& task) {
  static const cudaError_t status =
      cudaFuncSetAttribute(tile_kernel<F, Task>, cudaFuncAttributeMaxDynamicSharedMemorySize, Stage<F>::kAllBytes);
  deepinfer::cuda::check(status, "tiles");
  const unsigned blocks = std::min(tiles.x * tiles.y, static_cast<unsigned>(num_multiprocessors()));
  start("tiles", tile_kernel<F, Task>, blocks, kThreads, Stage<F>::kAllBytes, stream, task, static_cast<int>(tiles.x));
}

template <Format F>
void launch_experts_as(cudaStream_t stream, const ExpertArgs& p) {
  const auto tiles = static_cast<unsigned>(p.slots.max_tiles);
  launch<F>(stream, {static_cast<unsigned>(blocks_for(p.width, kTileRows / 2)), tiles},
            gate_up_task<F>(p, order_of(F)));
  launch<F>(stream, {static_cast<unsigned>(blocks_for(p.hidden, kTileRows)), tiles}, down_task<F>(p));
}

}  // namespace

void launch_tile_products(cudaStream_t stream, Format format, const ProductArgs& a) {
  LinearTask task{a};
  const dim3 tiles = grid_of(task, kTileRows, kTileTokens);
  format == Format::kFp8 ? launch<Format::kFp8>(stream, tiles, task) : launch<Format::kBF16>(stream, tiles, task);
}

void launch_tile_experts(cudaStream_t stream, Format format, const ExpertArgs& a) {
  format == Format::kFp4 ? launch_experts_as<Format::kFp4>(stream, a) : launch_experts_as<Format::kFp8>(stream, a);
}

}  // namespace deepinfer::kernels::cuda
