// The larger operations: mHC sites, selection, attention, routing and experts. Each lays its scratch out in the
// workspace anew.
#include "kernels/cuda/arguments.h"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int64_t kScoreBytes = int64_t{192} << 20;  // of index scores at a time
constexpr int kFewShared = 8;                        // tokens whose shared expert goes with the others

int64_t key_stride(int64_t places) {
  return round_up(std::max<int64_t>(places, 1), 64);
}

}  // namespace

// ---- mHC
// --------------------------------------------------------------------------------------------------------------

int64_t mhc_scratch_bytes(const Ops::WorkspaceShape& s) {
  return s.rows * ceil_div(s.hidden, kSiteChannels) * kSiteSums * 4 + Arena::kAlignment;
}

void CudaOps::mhc(Stream& stream, const MhcParams& p) {
  if (p.streams.rows == 0) return;
  DI_CHECK(p.m == kStreams, "{} residual streams; {} are built", p.m, kStreams);
  const int64_t d = p.streams.cols / p.m;
  Arena arena = scratch();
  SiteArgs a{};
  a.streams = bf16_rows(p.streams);
  a.y = bf16_rows(p.y);
  a.post = f32_rows(p.post_in);
  a.comb = f32_rows(p.comb_in);
  a.pre_in = f32_rows(p.pre_in);
  a.fn = p.fn;
  a.base = p.base;
  a.scale = p.scale;
  a.pre_out = f32_rows(p.pre_out);
  a.post_out = f32_rows(p.post_out);
  a.comb_out = f32_rows(p.comb_out);
  // Without a place of its own the folded row waits in x, which the norm then overwrites.
  if (p.gain != nullptr || !p.folded.empty()) a.folded = bf16_rows(p.folded.empty() ? p.x : p.folded);
  a.gain = device_bf16(p.gain);
  a.x = bf16_rows(p.x);
  auto is_aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  DI_CHECK(d % 8 == 0 && a.x.stride % 8 == 0 && a.folded.stride % 8 == 0 && a.streams.stride % 8 == 0 &&
               a.y.stride % 8 == 0 && is_aligned(a.gain) && is_aligned(a.x.data) && is_aligned(a.folded.data) &&
               is_aligned(a.streams.data) && is_aligned(a.y.data) && is_aligned(a.fn),
           "rows of {} channels that do not lie at multiples of 16 bytes", d);
  a.sums = arena.array<float>(p.streams.rows * ceil_div(d, kSiteChannels) * kSiteSums);
  a.d = d;
  a.num_rows = static_cast<int>(p.streams.rows);
  a.iters = p.sinkhorn_iters;
  a.rms_eps = p.rms_eps;
  a.hc_eps = p.hc_eps;
  launch_site(handle_of(stream), a);
}

// ---- selection
// ----------------------------------------------------------------------------------------------------------

int64_t select_scratch_bytes(const Ops::WorkspaceShape& s) {
  if (s.index_heads == 0) return 0;
  // Keys of entries, 2 bytes each; those of blocks of 2 entries or more take at most half of that again.
  const int64_t stride = key_stride(s.max_positions);
  const int64_t rows = std::clamp<int64_t>(kScoreBytes / (3 * stride), 1, std::max<int64_t>(s.rows, 1));
  return s.rows * kMaxIndexHeads * (s.index_dim * 2 + 4) + rows * (stride * 3 + 256) + 4 * Arena::kAlignment;
}

void CudaOps::select(Stream& stream, const SelectParams& p) {
  const int num_rows = static_cast<int>(p.q.rows);
  if (num_rows == 0) return;
  using Role = SelectParams::Role;
  const int dim = static_cast<int>(p.q.cols / p.heads);
  DI_CHECK(p.heads <= kMaxIndexHeads && dim <= kMaxIndexDim && dim % 32 == 0, "index of {} heads with {} channels",
           p.heads, dim);
  DI_CHECK(p.cache.format == RecordFormat::kPacked, "the CUDA backend has packed records only");
  DI_CHECK(p.role == Role::kPlain || p.candidate_block_size > 1, "blocks of {} entries", p.candidate_block_size);
  const bool chooses = p.role == Role::kChooser;
  Arena arena = scratch();
  auto* queries = arena.array<Bf16>(int64_t{num_rows} * kMaxIndexHeads * dim);
  auto* weights = arena.array<float>(int64_t{num_rows} * kMaxIndexHeads);
  int64_t most = p.max_positions;
  for (const Run& run : p.batch->runs)
    if (p.max_positions == 0) most = std::max(most, run.first_pos + run.num_rows);
  most /= p.cache.ratio;
  const int64_t stride = key_stride(chooses ? int64_t{p.candidate_blocks} * p.candidate_block_size : most);
  const int64_t block_stride = p.role == Role::kSource ? key_stride(ceil_div(most, p.candidate_block_size)) : 0;
  const int64_t left = workspace_.bytes - arena.used() - 2 * Arena::kAlignment;
  const int64_t chunk = std::min<int64_t>(num_rows, left / (2 * (stride + block_stride)));
  DI_CHECK(chunk > 0, "a workspace of {} bytes is too small for the scores of {} entries", workspace_.bytes, stride);
  auto* keys = arena.array<uint16_t>(chunk * stride);
  auto* block_keys = arena.array<uint16_t>(chunk * block_stride);

  cudaStream_t handle = handle_of(stream);
  launch_index_queries(handle, {.q = bf16_rows(p.q),
                                .head_weights = bf16_rows(p.head_weights),
                                .cos = f32_rows(p.rope.cos),
                                .sin = f32_rows(p.rope.sin),
                                .out = queries,
                                .out_weights = weights,
                                .heads = p.heads,
                                .dim = dim,
                                .pairs = static_cast<int>(p.rope.cos.cols),
                                .num_rows = num_rows,
                                .head_scale = p.head_scale});
  const BatchArgs batch = batch_of(*p.batch);
  for (int64_t first = 0; first < num_rows; first += chunk) {
    const ScoreArgs scores{.runs = batch.runs,
                           .run_of_row = batch.run_of_row,
                           .positions = batch.positions,
                           .cache = p.cache,
                           .queries = queries,
                           .weights = weights,
                           .candidates = chooses ? static_cast<const int32_t*>(p.candidates.data) : nullptr,
                           .candidate_stride = p.candidates.stride,
                           .num_candidates = p.candidate_blocks,
                           .candidate_size = p.candidate_block_size,
                           .keys = keys,
                           .stride = stride,
                           .first_row = static_cast<int>(first),
                           .num_rows = static_cast<int>(std::min(chunk, num_rows - first)),
                           .dim = dim};
    launch_index_scores(handle, scores);
    if (p.role == Role::kSource) {
      launch_block_keys(handle, scores, block_keys, block_stride);
      launch_top_k(handle, scores, block_keys, block_stride, p.candidate_block_size, i32_rows(p.candidates),
                   p.candidate_blocks);
    }
    launch_top_k(handle, scores, keys, stride, 1, i32_rows(p.chosen), p.top_k);
  }
}

// ---- attention
// ----------------------------------------------------------------------------------------------------------

void CudaOps::attention(Stream& stream, const AttentionParams& p) {
  if (p.q.rows == 0) return;
  DI_CHECK(p.window.format == RecordFormat::kPacked, "the CUDA backend has packed records only");
  const BatchArgs batch = batch_of(*p.batch);
  AttentionArgs a{};
  a.runs = batch.runs;
  a.run_of_row = batch.run_of_row;
  a.positions = batch.positions;
  a.records = reinterpret_cast<const uint8_t*>(p.records);
  a.window = p.window;
  a.global = p.global;
  a.chosen = i32_rows(p.chosen);
  a.num_chosen = p.chosen.empty() ? 0 : static_cast<int>(p.chosen.cols);
  a.block_mask = p.block_mask;
  a.q = bf16_rows(p.q);
  a.out = bf16_rows(p.out);
  a.cos = f32_rows(p.rope.cos);
  a.sin = f32_rows(p.rope.sin);
  a.sink = p.sink;
  a.heads = p.heads;
  a.dim = p.head_dim;
  a.pairs = static_cast<int>(p.rope.cos.cols);
  a.num_rows = static_cast<int>(p.q.rows);
  a.max_keys = p.window.window + a.num_chosen;
  if (p.block_mask) {
    int most = 0;
    for (const Run& run : p.batch->runs) most = std::max(most, run.num_rows);
    a.max_keys += most;
  }
  a.scale = p.scale;
  if (numerics_ == Numerics::kFast && fits_fast_attention(a)) return launch_fast_attention(handle_of(stream), a);
  DI_CHECK(p.head_dim % 32 == 0 && kAttentionHeads * (a.dim + a.max_keys) * 4 <= 220 << 10,
           "attention over {} keys of {} channels", a.max_keys, a.dim);
  launch_attention(handle_of(stream), a);
}

// ---- experts
// ------------------------------------------------------------------------------------------------------------

namespace {

RouteArgs route_args(const RouteParams& p) {
  DI_CHECK(p.logits.cols <= kMaxRouted && p.top_k <= kMaxTopK && p.top_k <= p.logits.cols, "top {} of {} experts",
           p.top_k, p.logits.cols);
  return {.logits = f32_rows(p.logits),
          .bias = p.bias,
          .bias_image = p.bias_image,
          .is_image = p.is_image,
          .ids = i32_rows(p.ids),
          .weights = f32_rows(p.weights),
          .num_rows = static_cast<int>(p.logits.rows),
          .num_experts = static_cast<int>(p.logits.cols),
          .top_k = p.top_k,
          .gate_temp = p.gate_temp,
          .scale = p.scale};
}

}  // namespace

void CudaOps::route(Stream& stream, const RouteParams& p) {
  if (p.logits.rows > 0) launch_route(handle_of(stream), route_args(p));
}

int64_t moe_scratch_bytes(const Ops::WorkspaceShape& s) {
  const int64_t slots = s.rows * s.experts_per_token, rows = round_up(s.rows, kTileTokens);
  // An expert's last tile of 128 tokens need not be full; a layer may have fewer experts, and so such tiles.
  const int64_t places = slots + std::min(s.experts, slots / kManyRows) * kTileTokens;
  return 2 * (3 * rows * s.hidden + (places + rows) * (s.expert_width + s.hidden) + slots * s.hidden) + slots * 4 +
         (s.experts + slots) * static_cast<int64_t>(sizeof(MoeTile)) + 16 * Arena::kAlignment;
}

namespace {

void check_expert(const ExpertWeights& e, Weight::Kind kind, int64_t hidden) {
  const int64_t width = e.w1.rows;
  DI_CHECK(e.w1.kind == kind && e.w2.kind == kind && e.w3.kind == kind, "an expert of another kind of weights");
  DI_CHECK(hidden % 32 == 0 && width % 32 == 0 && e.w1.cols == hidden && e.w3.rows == width && e.w3.cols == hidden &&
               e.w2.rows == hidden && e.w2.cols == width,
           "an expert of [{}, {}] for {} channels", width, e.w1.cols, hidden);
}

// Which kernel takes tiles of so many tokens: Hopper's, if they have this expert's widths.
Layout layout_of(const ExpertWeights& e, int tile_tokens) {
  if (tile_tokens <= kFewTokens || e.w1.cols % 128 != 0 || e.w1.rows % 128 != 0 || !has_wide_products())
    return Layout::kRows;
  return tile_tokens == kTileTokens ? Layout::kTiles : Layout::kWide;
}
// Rows of memory that the slots take in the layout.
int64_t places_of(const ExpertArgs& a, int64_t num_slots) {
  return a.layout == Layout::kTiles ? int64_t{a.slots.max_tiles} * kTileTokens : num_slots;
}

// Products of tiles of 64 or 128 tokens.
void many_experts(cudaStream_t stream, Arena& arena, Format format, const TensorView& x, ExpertArgs& a) {
  const bool is_planned = a.slots.tiles != nullptr && a.layout == Layout::kTiles;
  auto* prepared = arena.array<Bf16>((a.layout == Layout::kTiles ? places_of(a, 0) : x.rows) * x.cols);
  launch_prepare(stream, bf16_rows(x), static_cast<int>(x.rows), x.cols, order_of(format), true, a.layout,
                 is_planned ? &a.slots : nullptr, prepared);
  a.x = prepared;
  constexpr void (*kLaunches[])(cudaStream_t, Format, const ExpertArgs&) = {launch_experts, launch_wide_experts,
                                                                            launch_tile_experts};
  kLaunches[static_cast<int>(a.layout)](stream, format, a);
}

}  // namespace

void CudaOps::moe(Stream& stream, const MoeParams& p) {
  run_moe(stream, nullptr, p);
}

// With few rows the launch that makes the plan makes the choice too.
void CudaOps::route_and_moe(Stream& stream, const RouteParams& choice, const MoeParams& p) {
  const bool are_planned = p.x.rows <= kMostPlannedChoices && !p.experts.empty();
  if (!are_planned) route(stream, choice);
  run_moe(stream, are_planned ? &choice : nullptr, p);
}

void CudaOps::run_moe(Stream& stream, const RouteParams* choice, const MoeParams& p) {
  const int num_rows = static_cast<int>(p.x.rows), top_k = static_cast<int>(p.ids.cols);
  if (num_rows == 0) return;
  cudaStream_t handle = handle_of(stream);
  Arena arena = scratch();
  const int64_t d = p.x.cols, num_slots = int64_t{num_rows} * top_k;
  const int num_experts = static_cast<int>(p.experts.size());
  Rows<Bf16> outputs = bf16_rows(p.slots);
  if (p.slots.empty()) {
    outputs = {arena.array<Bf16>(num_slots * d), top_k * d};
  } else {  // experts of other ranks leave zeros
    deepinfer::cuda::check(
        cudaMemset2DAsync(p.slots.data, static_cast<size_t>(p.slots.stride * 2), 0,
                          static_cast<size_t>(p.slots.cols * 2), static_cast<size_t>(num_rows), handle),
        "moe slots");
  }
  const bool has_shared = p.slots.empty() && p.shared != nullptr;
  MoeSlots slots{.num_rows = num_rows, .top_k = top_k};
  slots.tile_tokens = moe_tile_tokens(static_cast<double>(num_slots) / std::max(num_experts, 1));
  const bool are_few = slots.tile_tokens <= kFewTokens, shared_is_few = has_shared && num_rows <= kFewShared;
  Bf16* rounded = are_few || shared_is_few ? arena.array<Bf16>(num_rows * d) : nullptr;
  Bf16* shared = has_shared ? arena.array<Bf16>(num_rows * d) : nullptr;
  ExpertArgs one{}, all{};
  if (has_shared) {
    check_expert(*p.shared, Weight::Kind::kFp8, d);
    one.slots = {.num_rows = num_rows, .top_k = 1};
    one.slots.tile_tokens = num_rows <= 64 ? 64 : 128;
    one.slots.max_tiles = ceil_div(num_rows, one.slots.tile_tokens);
    one.one = *p.shared;
    one.x = rounded;
    one.layout = shared_is_few ? Layout::kRows : layout_of(*p.shared, one.slots.tile_tokens);
    one.a = arena.array<Bf16>(places_of(one, num_rows) * p.shared->w1.rows);
    one.y = {shared, d};
    one.hidden = static_cast<int>(d);
    one.width = static_cast<int>(p.shared->w1.rows);
    one.limit = p.limit;
    if (!shared_is_few) many_experts(handle, arena, Format::kFp8, p.x, one);
  }
  if (num_experts > 0) {
    DI_CHECK(num_experts <= kMaxRouted && p.device_experts != nullptr, "{} experts, on the device: {}", num_experts,
             p.device_experts != nullptr);
    check_expert(p.experts[0], Weight::Kind::kFp4, d);
    slots.max_tiles = static_cast<int>(std::min<int64_t>(num_slots, num_experts) + num_slots / slots.tile_tokens);
    auto* list = arena.array<int32_t>(num_slots);
    auto* tiles = arena.array<MoeTile>(slots.max_tiles);
    auto* num_tiles = arena.array<int>(1);
    slots.list = list;
    slots.tiles = tiles;
    slots.num_tiles = num_tiles;
    const RouteArgs chosen = choice == nullptr ? RouteArgs{} : route_args(*choice);
    launch_moe_plan(handle,
                    {.ids = i32_rows(p.ids),
                     .num_slots = static_cast<int>(num_slots),
                     .top_k = top_k,
                     .expert_begin = p.expert_begin,
                     .num_experts = num_experts,
                     .tile_tokens = slots.tile_tokens,
                     .list = list,
                     .tiles = tiles,
                     .num_tiles = num_tiles},
                    chosen, bf16_rows(p.x), num_rows, d, rounded);
    all.slots = slots;
    all.experts = p.device_experts;
    all.x = rounded;
    all.weights = f32_rows(p.weights);
    all.layout = layout_of(p.experts[0], slots.tile_tokens);
    all.a = arena.array<Bf16>(places_of(all, num_slots) * p.experts[0].w1.rows);
    all.y = outputs;
    all.hidden = static_cast<int>(d);
    all.width = static_cast<int>(p.experts[0].w1.rows);
    all.limit = p.limit;
    if (!are_few) many_experts(handle, arena, Format::kFp4, p.x, all);
  } else if (rounded != nullptr) {
    launch_prepare(handle, bf16_rows(p.x), num_rows, d, Order::kNatural, true, Layout::kRows, nullptr, rounded);
  }
  const bool has_few = are_few && num_experts > 0;
  if (has_few || shared_is_few) launch_few_experts(handle, has_few ? &all : nullptr, shared_is_few ? &one : nullptr);
  if (!p.slots.empty()) return;
  launch_moe_sum(handle, outputs, i32_rows(p.ids), p.expert_begin, num_experts, top_k, shared, num_rows, d,
                 bf16_rows(p.z));
}

}  // namespace deepinfer::kernels::cuda
