// Launches of the kernels in this folder over plain parameters; cuda_ops and its neighbours fill them in.
//
//   Row counts are at least 1. Nothing waits for the device.
#pragma once

#include "kernels/cuda/view.h"
#include "kernels/layout.h"

namespace deepinfer::kernels::cuda {

// ---- rows.cu
// ----------------------------------------------------------------------------------------------------------

constexpr int kMaxPairs = 64;
struct Frequencies {  // by value in the launch
  float f[kMaxPairs];
  int count;
};

struct EmbedArgs {
  const int32_t* ids;
  Rows<float> given;  // data nullptr: none
  const Bf16* table;
  int64_t table_rows, d, row_begin;
  Rows<Bf16> streams;
  int m, num_rows;
};
void launch_embed(cudaStream_t stream, const EmbedArgs& a);
struct NormArgs {
  Rows<Bf16> x, y;
  const Bf16* gain;
  int64_t n;
  float eps;
};
void launch_rms_norm(cudaStream_t stream, const NormArgs& a, int num_rows);
void launch_rope(cudaStream_t stream, const int64_t* positions, const Frequencies& freq, Rows<float> cos,
                 Rows<float> sin, int num_rows);
void launch_stream_mean(cudaStream_t stream, Rows<Bf16> streams, int m, Rows<Bf16> mean, int num_rows, int64_t d);
void launch_gather_rows(cudaStream_t stream, const Bf16* table, int64_t table_rows, int64_t row_begin,
                        const int32_t* ids, Rows<Bf16> out, int num_rows, int64_t n);
void launch_combine(cudaStream_t stream, Rows<Bf16> slots, Rows<Bf16> shared, int top_k, Rows<Bf16> z, int num_rows,
                    int64_t d);
void launch_swiglu(cudaStream_t stream, Rows<Bf16> gate, Rows<Bf16> up, Rows<Bf16> a, int num_rows, int64_t n,
                   float limit);
struct EngramGatherArgs {
  Rows<int64_t> rows;
  int64_t columns;
  const uint8_t *codes, *scales;
  int64_t table_rows, dim, row_begin;
  Rows<Bf16> out;
  int num_rows;
};
void launch_engram_gather(cudaStream_t stream, const EngramGatherArgs& a);
struct EngramGateArgs {
  Rows<Bf16> streams, kv;
  const Bf16 *q_weight, *k_weight;
  const uint8_t* is_image;
  int m;
  int64_t d;
  float eps, width_factor;
  int num_rows;
};
void launch_engram_gate(cudaStream_t stream, const EngramGateArgs& a);

// ---- cache.cu
// ---------------------------------------------------------------------------------------------------------

constexpr int kMaxRecordDim = 1024;

struct BatchArgs {
  const Run* runs;
  const int32_t* run_of_row;
  const int64_t* positions;
  int num_rows;
};
struct WindowKeyArgs {
  Rows<Bf16> raw;
  int dim;
  const Bf16* gain;
  float eps;
  Rows<float> cos, sin;
  int pairs;
  uint8_t* records;
  int num_rows;
};
// With a norm of as many other rows beside it, if that is not nullptr.
void launch_window_keys(cudaStream_t stream, const WindowKeyArgs& a, const NormArgs* norm);
void launch_window_store(cudaStream_t stream, const BatchArgs& batch, const uint8_t* records, const WindowCache& cache);
struct PoolArgs {
  const int32_t* group_of_row;
  Rows<Bf16> kv;               // ratio 1
  Rows<float> kv_pairs, gate;  // ratio 2
  TailCache tail;
  int dim, ratio;
  const Bf16* gain;
  float eps;
  Rows<Bf16> latent;
};
void launch_pool(cudaStream_t stream, const BatchArgs& batch, const PoolArgs& a);
struct GlobalWriteArgs {
  const int32_t* group_of_row;
  Rows<Bf16> latent, key_raw;
  int dim, index_dim;
  const Bf16* key_gain;
  float eps;
  Frequencies freq;
  GlobalCache cache;
};
void launch_global_write(cudaStream_t stream, const BatchArgs& batch, const GlobalWriteArgs& a);

// ---- mhc.cu
// -----------------------------------------------------------------------------------------------------------

constexpr int kStreams = 4, kMixes = (2 + kStreams) * kStreams;
constexpr int kSiteSums = kMixes + 2;  // mixes, squares of the streams, squares of the folded row
constexpr int kSiteChannels = 128;     // of a piece
struct SiteArgs {
  Rows<Bf16> streams, y;
  Rows<float> post, comb, pre_in;
  const float *fn, *base, *scale;  // nullptr: no mixes
  Rows<float> pre_out, post_out, comb_out;
  Rows<Bf16> folded;  // where the folded row goes; data nullptr: not wanted
  const Bf16* gain;   // nullptr: no norm
  Rows<Bf16> x;
  float* sums;  // scratch [T][ceil(d / kSiteChannels)][kSiteSums]
  int64_t d;
  int num_rows, iters;
  float rms_eps, hc_eps;
};
void launch_site(cudaStream_t stream, const SiteArgs& a);

// ---- select.cu
// --------------------------------------------------------------------------------------------------------

constexpr int kMaxIndexHeads = 32, kMaxIndexDim = 128;
struct QueryArgs {
  Rows<Bf16> q, head_weights;
  Rows<float> cos, sin;
  Bf16* out;           // [T][kMaxIndexHeads][dim], in the order of the expanded keys
  float* out_weights;  // [T][kMaxIndexHeads]
  int heads, dim, pairs, num_rows;
  float head_scale;
};
void launch_index_queries(cudaStream_t stream, const QueryArgs& a);
struct ScoreArgs {
  const Run* runs;
  const int32_t* run_of_row;
  const int64_t* positions;
  GlobalCache cache;
  const Bf16* queries;
  const float* weights;
  const int32_t* candidates;  // [T, num_candidates], or nullptr: all visible entries
  int64_t candidate_stride;
  int num_candidates, candidate_size;
  uint16_t* keys;  // [rows][stride], rows from first_row
  int64_t stride;
  int first_row, num_rows, dim;
};
void launch_index_scores(cudaStream_t stream, const ScoreArgs& a);
// Keys of blocks of candidate_size entries, the newest forced to the largest key.
void launch_block_keys(cudaStream_t stream, const ScoreArgs& a, uint16_t* out, int64_t out_stride);
// The k largest of `keys`: of places, or of blocks if block_size > 1.
void launch_top_k(cudaStream_t stream, const ScoreArgs& scores, const uint16_t* keys, int64_t stride, int block_size,
                  Rows<int32_t> out, int k);

// ---- attention.cu, attention_few.cu, attention_mma.cu
// -------------------------------------------------------------------------------------

struct AttentionArgs {
  const Run* runs;
  const int32_t* run_of_row;
  const int64_t* positions;
  const uint8_t* records;  // of the batch's rows
  WindowCache window;
  GlobalCache global;
  Rows<int32_t> chosen;
  int num_chosen;  // columns of `chosen`
  bool block_mask;
  Rows<Bf16> q, out;
  Rows<float> cos, sin;
  const float* sink;
  int heads, dim, pairs, num_rows;
  int max_keys;  // of a row
  float scale;
};
constexpr int kAttentionHeads = 8;  // of a block
void launch_attention(cudaStream_t stream, const AttentionArgs& a);
constexpr int kFastAttentionDim = 512, kFastAttentionPairs = 32, kFastAttentionKeys = 640;
bool fits_fast_attention(const AttentionArgs& a);
void launch_fast_attention(cudaStream_t stream, const AttentionArgs& a);
void launch_few_attention(cudaStream_t stream, const AttentionArgs& a);

// ---- route.cu
// ---------------------------------------------------------------------------------------------------------

constexpr int kMaxRouted = 512, kMaxTopK = 16;
struct RouteArgs {
  Rows<float> logits;
  const float *bias, *bias_image;
  const uint8_t* is_image;
  Rows<int32_t> ids;
  Rows<float> weights;
  int num_rows, num_experts, top_k;
  float gate_temp, scale;
};
void launch_route(cudaStream_t stream, const RouteArgs& a);

// ---- linear.cu
// --------------------------------------------------------------------------------------------------------

enum class Format { kFp8, kFp4, kBF16 };
enum class Order { kNatural, kPairs8, kPairs4 };  // of the columns within every 8 (mma.cuh)

__host__ __device__ constexpr Order order_of(Format f) {
  return f == Format::kFp8 ? Order::kPairs8 : f == Format::kFp4 ? Order::kPairs4 : Order::kNatural;
}
__host__ __device__ constexpr int64_t row_bytes_of(Format f, int64_t cols) {
  return f == Format::kFp4 ? cols / 2 : f == Format::kFp8 ? cols : 2 * cols;
}

// How the tokens of a product lie in memory.
enum class Layout {
  kRows,   // row after row
  kWide,   // likewise, the columns in wide order (sm90/wide.cu); cols % 128 == 0
  kTiles,  // as sm90/tiles.cu has them in shared memory: [tiles of 128 tokens][128 columns in wide order]; likewise
};
// Wide order: where the element goes that the plain order has at c. Of 128 columns lane q of a quad owns 32; its words
// (2 columns) 4 j .. 4 j + 3 belong to steps 2 j, 2 j, 2 j + 1, 2 j + 1, a step being 16 columns.
__host__ __device__ constexpr int wide_place(int c) {
  return c / 128 * 128 + (c % 32 / 2 * 4 + c % 128 / 32) * 2 + c % 2;
}
// Element of kTiles where piece p (8 columns in wide order, of 128) of token i of a tile lies; `block`: tile x column
// blocks + column block. A block is two halves of 64 columns, rows of 128 bytes, pieces exchanged for the banks.
constexpr int kTileTokens = 128;
__host__ __device__ constexpr int64_t tile_place(int64_t block, int i, int p) {
  return ((block * 2 + p / 8) * kTileTokens + i) * 64 + (p % 8 ^ i % 8) * 8;
}

struct MoeSlots;
// Stores x in the given order and layout, rounded to e4m3 in groups of 32 if `rounds` (model.md 6.2, act). With `slots`
// (kTiles only) the tokens of its planned tiles, a tile of an expert a tile of the layout.
void launch_prepare(cudaStream_t stream, Rows<Bf16> x, int num_rows, int64_t cols, Order order, bool rounds,
                    Layout layout, const MoeSlots* slots, Bf16* out);

constexpr int kMaxJobs = 16;
struct ProductJob {
  const uint8_t *codes, *scales;
  void* y;
  int64_t y_stride, x_column;  // the job's input begins at this column of x
  int first_tile, num_rows, scale_shift;
  bool keeps_f32, accumulates;
};
// Up to so many tokens a product takes x as it lies. If a block can keep all columns of all tokens it rounds them too.
constexpr int kFewTokens = 16;
constexpr int64_t kept_token_bytes(int64_t num_tokens, int64_t cols) {  // with scales of 2 bytes
  return (cols + 127) / 128 * (256 + 4 * 2) * num_tokens;
}
constexpr bool can_keep_tokens(int64_t num_tokens, int64_t cols) {
  constexpr int64_t kMost = 96 << 10;  // leaves two stages of weights and more
  return num_tokens <= kFewTokens && kept_token_bytes(num_tokens, cols) <= kMost;
}
struct ProductArgs {
  ProductJob jobs[kMaxJobs];
  int num_jobs, num_tokens, cols;
  const Bf16* x;  // 16-byte aligned rows
  int64_t x_stride, row_bytes;
  bool keeps_tokens;  // all jobs have the same columns of x, and can_keep_tokens
  bool rounds;        // x while it is kept
};
// More than kFewTokens: x prepared for the format.
void launch_products(cudaStream_t stream, Format format, const ProductArgs& a);
// On Hopper; whole super groups of 128 columns, no fp4. Same bits.
bool has_wide_products();
int multiprocessors();
void launch_wide_products(cudaStream_t stream, Format format, const ProductArgs& a);  // x in kWide
void launch_tile_products(cudaStream_t stream, Format format, const ProductArgs& a);  // x in kTiles
void launch_f32_product(cudaStream_t stream, Rows<Bf16> x, int num_rows, const float* weight, int64_t cols,
                        const ProductJob& job);

// ---- moe.cu
// -----------------------------------------------------------------------------------------------------------

struct MoeTile {
  int expert, begin, count;
};
// Which slots a launch works on: planned tiles, or all rows in order for one expert.
struct MoeSlots {
  const MoeTile* tiles;  // nullptr: one expert, rows in order
  const int* num_tiles;
  const int32_t* list;  // slots by expert
  int num_rows, top_k;
  int tile_tokens, max_tiles;
};
// Tokens of a block for so many rows an expert on average; more than kManyRows: kTileTokens.
constexpr int kManyRows = 96;
int moe_tile_tokens(double rows_per_expert);
struct MoePlanArgs {
  Rows<int32_t> ids;
  int num_slots, top_k, expert_begin, num_experts, tile_tokens;
  int32_t* list;
  MoeTile* tiles;
  int* num_tiles;
};
// The plan, and beside it x rounded into `rounded` [T, d] as it lies if that is not nullptr. A choice with rows (at
// most kMostPlannedChoices) is made first.
constexpr int kMostPlannedChoices = 32;
void launch_moe_plan(cudaStream_t stream, const MoePlanArgs& plan, const RouteArgs& choice, Rows<Bf16> x, int num_rows,
                     int64_t d, Bf16* rounded);
struct ExpertArgs {
  MoeSlots slots;
  const ExpertWeights* experts;  // on the device; nullptr: `one`
  ExpertWeights one;
  const Bf16* x;        // prepared for the format; for few tokens rounded only
  Rows<float> weights;  // [T, K]; data nullptr: none
  Bf16* a;              // scratch [slots][width]
  Rows<Bf16> y;         // slot t K + k goes to columns k d .. of row t
  int hidden, width;
  float limit;
  Layout layout;  // of x and a
};
// Tiles of up to 8 tokens. Either may be nullptr: FP4 experts with planned tiles, one FP8 expert with all rows.
void launch_few_experts(cudaStream_t stream, const ExpertArgs* experts, const ExpertArgs* shared);
// Tiles of 64 or 128 tokens.
void launch_experts(cudaStream_t stream, Format format, const ExpertArgs& a);
void launch_wide_experts(cudaStream_t stream, Format format, const ExpertArgs& a);  // kWide, tiles of 64
void launch_tile_experts(cudaStream_t stream, Format format, const ExpertArgs& a);  // kTiles
void launch_moe_sum(cudaStream_t stream, Rows<Bf16> slots, Rows<int32_t> ids, int expert_begin, int num_experts,
                    int top_k, const Bf16* shared, int num_rows, int64_t d, Rows<Bf16> z);

}  // namespace deepinfer::kernels::cuda
