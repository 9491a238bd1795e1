// What the product kernels work on: dense weights, and the two products of an expert layer. A task tells a block its
// weights and tokens, and takes the sums of its tile.
#pragma once

#include "kernels/cuda/smxx/product.cuh"

namespace deepinfer::kernels::cuda {

// The first `count` of four sums to neighbouring places.
__device__ __forceinline__ void store_sums(Bf16* to, const float4& v, int count) {
  if (count >= 4 && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pairs);
    return;
  }
  const float sums[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) to[i] = to_b(sums[i]);
  }
}

struct LinearTask : ProductArgs {
  __device__ const ProductJob& job_of(TileAt at) const {
    int j = 0;
    while (j + 1 < num_jobs && at.rows >= jobs[j + 1].first_tile) ++j;
    return jobs[j];
  }
  __device__ int num_token_tiles(int tile_tokens) const { return (num_tokens + tile_tokens - 1) / tile_tokens; }
  __device__ TokenTile tokens_of(TileAt at, int tile_tokens) const {
    const int begin = at.tokens * tile_tokens;
    return {x + job_of(at).x_column, x_stride, nullptr, begin, min(tile_tokens, num_tokens - begin), 1};
  }
  __device__ bool locate(TileAt at, int tile_rows, int tile_tokens, WeightTile& w, TokenTile& t) const {
    const ProductJob& j = job_of(at);
    const int first = (at.rows - j.first_tile) * tile_rows;
    w.codes[0] = w.codes[1] = j.codes + first * row_bytes;
    w.scales[0] = w.scales[1] =
        j.scales == nullptr ? nullptr : j.scales + static_cast<int64_t>(first >> j.scale_shift) * (cols / 32);
    w.num_rows[0] = w.num_rows[1] = j.num_rows - first;
    w.half = tile_rows;
    w.scale_shift = j.scale_shift;
    t = tokens_of(at, tile_tokens);
    return true;
  }
  template <typename Sums>
  __device__ void finish(TileAt tile, const Sums& sums, int tile_rows, const TokenTile& tokens, int thread) const {
    const ProductJob& j = job_of(tile);
    const int first = (tile.rows - j.first_tile) * tile_rows;
    if (!j.accumulates && !j.keeps_f32) {
      const int fours = tile_rows / 4;
#pragma unroll(Sums::kUnroll)
      for (int i = thread; i < fours * tokens.count; i += kProductThreads) {
        const int row = i % fours * 4, token = i / fours;
        store_sums(static_cast<Bf16*>(j.y) + (tokens.begin + token) * j.y_stride + first + row, sums.sums4(row, token),
                   j.num_rows - first - row);
      }
      return;
    }
    for (int i = thread; i < tile_rows * tokens.count; i += kProductThreads) {
      const int row = i % tile_rows, token = i / tile_rows;
      if (first + row >= j.num_rows) continue;
      float& y = static_cast<float*>(j.y)[(tokens.begin + token) * j.y_stride + first + row];
      const float sum = sums.sum(row, token);
      y = j.accumulates ? y + sum : sum;
    }
  }
  // kTiles: where the blocks of a tile's tokens begin.
  __device__ const Bf16* blocks_of(TileAt at) const {
    return x + tile_place(at.tokens * (x_stride / 128) + job_of(at).x_column / 128, 0, 0);
  }
};

// Numbers the tiles of the jobs through and gives the grid.
inline dim3 grid_of(LinearTask& task, int tile_rows, int tile_tokens) {
  int tiles = 0;
  for (int j = 0; j < task.num_jobs; ++j) {
    task.jobs[j].first_tile = tiles;
    tiles += (task.jobs[j].num_rows + tile_rows - 1) / tile_rows;
  }
  return {static_cast<unsigned>(tiles), static_cast<unsigned>(blocks_for(task.num_tokens, tile_tokens))};
}

struct Slots : MoeSlots {
  __device__ int count(int tokens) const { return tiles == nullptr ? (num_rows + tokens - 1) / tokens : *num_tiles; }
  __device__ MoeTile tile(int i, int tokens) const {
    if (tiles != nullptr) return tiles[i];
    return {0, i * tokens, min(tokens, num_rows - i * tokens)};
  }
  __device__ int slot(int i) const { return list == nullptr ? i : list[i]; }
};

struct GateUpTask {
  Slots slots;
  const ExpertWeights* experts;  // nullptr: `one`
  ExpertWeights one;
  const Bf16* x;
  Rows<float> weights;  // [T, K]; data nullptr: none
  Bf16* a;              // [slots][width]
  int cols, width, scale_shift;
  int64_t row_bytes;
  Order order;  // of a
  Layout layout;
  float limit;

  __device__ int num_token_tiles(int tile_tokens) const { return slots.count(tile_tokens); }
  __device__ TokenTile tokens_of(TileAt at, int tile_tokens) const {
    const MoeTile tile = slots.tile(at.tokens, tile_tokens);
    return {x, cols, slots.list, tile.begin, tile.count, slots.top_k};
  }
  __device__ bool locate(TileAt at, int tile_rows, int tile_tokens, WeightTile& w, TokenTile& t) const {
    if (at.tokens >= num_token_tiles(tile_tokens)) return false;
    const int expert = slots.tile(at.tokens, tile_tokens).expert;
    const ExpertWeights& e = experts == nullptr ? one : experts[expert];
    const int first = at.rows * (tile_rows / 2);
    const int64_t scale_at = static_cast<int64_t>(first >> scale_shift) * (cols / 32);
    w.codes[0] = static_cast<const uint8_t*>(e.w1.codes) + first * row_bytes;
    w.codes[1] = static_cast<const uint8_t*>(e.w3.codes) + first * row_bytes;
    w.scales[0] = e.w1.scales + scale_at;
    w.scales[1] = e.w3.scales + scale_at;
    w.num_rows[0] = w.num_rows[1] = width - first;
    w.half = tile_rows / 2;
    w.scale_shift = scale_shift;
    t = tokens_of(at, tile_tokens);
    return true;
  }
  template <typename Sums>
  __device__ void finish(TileAt tile, const Sums& sums, int tile_rows, const TokenTile& tokens, int thread) const {
    const int half = tile_rows / 2, first = tile.rows * half, lane = thread % kWarp, warp = thread / kWarp;
    // A warp takes every eighth token; lane k knows the slot and the weight of its k-th.
    const int mine = warp + kProductWarps * lane;
    int my_slot = 0;
    float my_weight = 1;
    if (mine < tokens.count) {
      my_slot = slots.slot(tokens.begin + mine);
      if (weights.data != nullptr) my_weight = weights.row(my_slot / slots.top_k)[my_slot % slots.top_k];
    }
#pragma unroll(Sums::kUnroll)
    for (int token = warp; token < tokens.count; token += kProductWarps) {
      const int slot = __shfl_sync(0xffffffffu, my_slot, token / kProductWarps);
      const float weight = __shfl_sync(0xffffffffu, my_weight, token / kProductWarps);
      for (int c = lane; c < half && first + c - lane < width; c += kWarp) {  // 32 channels at a time
        const int channel = first + c;
        const float v =
            round_b(swiglu_value(round_b(sums.sum(c, token)), round_b(sums.sum(half + c, token)), limit) * weight);
        const float scale = ue8m0_value(ue8m0_ceil(fmaxf(lane_max(fabsf(v)), kActFloor), kInvE4M3));
        a[place(tile.tokens, token, slot, channel / 8 * 8 + place_of(order, channel % 8))] =
            to_b(e4m3_value(e4m3_code(v * (1 / scale))) * scale);
      }
    }
  }
  // Where channel c of a slot goes, token `i` of its tile.
  __device__ int64_t place(int tile, int i, int slot, int c) const {
    const int64_t row = static_cast<int64_t>(slot) * width;
    if (layout == Layout::kRows) return row + c;
    const int wide = wide_place(c);
    if (layout == Layout::kWide) return row + wide;
    return tile_place(static_cast<int64_t>(tile) * (width / 128) + wide / 128, i, wide % 128 / 8) + wide % 8;
  }
  __device__ const Bf16* blocks_of(TileAt at) const { return x + tile_place(int64_t{at.tokens} * (cols / 128), 0, 0); }
};

struct DownTask {
  Slots slots;
  const ExpertWeights* experts;
  ExpertWeights one;
  const Bf16* a;
  Rows<Bf16> y;  // slot t K + k goes to columns k d .. of row t
  int cols, hidden, scale_shift;
  int64_t row_bytes;

  __device__ int num_token_tiles(int tile_tokens) const { return slots.count(tile_tokens); }
  __device__ TokenTile tokens_of(TileAt at, int tile_tokens) const {
    const MoeTile tile = slots.tile(at.tokens, tile_tokens);
    return {a, cols, slots.list, tile.begin, tile.count, 1};
  }
  __device__ bool locate(TileAt at, int tile_rows, int tile_tokens, WeightTile& w, TokenTile& t) const {
    if (at.tokens >= num_token_tiles(tile_tokens)) return false;
    const int expert = slots.tile(at.tokens, tile_tokens).expert;
    const Weight& m = experts == nullptr ? one.w2 : experts[expert].w2;
    const int first = at.rows * tile_rows;
    w.codes[0] = w.codes[1] = static_cast<const uint8_t*>(m.codes) + first * row_bytes;
    w.scales[0] = w.scales[1] = m.scales + static_cast<int64_t>(first >> scale_shift) * (cols / 32);
    w.num_rows[0] = w.num_rows[1] = hidden - first;
    w.half = tile_rows;
    w.scale_shift = scale_shift;
    t = tokens_of(at, tile_tokens);
    return true;
  }
  template <typename Sums>
  __device__ void finish(TileAt tile, const Sums& sums, int tile_rows, const TokenTile& tokens, int thread) const {
    const int first = tile.rows * tile_rows;
    const int fours = tile_rows / 4;
#pragma unroll(Sums::kUnroll)
    for (int i = thread; i < fours * tokens.count; i += kProductThreads) {
      const int row = i % fours * 4, token = i / fours, slot = slots.slot(tokens.begin + token);
      store_sums(y.row(slot / slots.top_k) + static_cast<int64_t>(slot % slots.top_k) * hidden + first + row,
                 sums.sums4(row, token), hidden - first - row);
    }
  }
  __device__ const Bf16* blocks_of(TileAt at) const { return a + tile_place(int64_t{at.tokens} * (cols / 128), 0, 0); }
};

template <Format F>
GateUpTask gate_up_task(const ExpertArgs& p, Order order) {
  return {.slots = {p.slots},
          .experts = p.experts,
          .one = p.one,
          .x = p.x,
          .weights = p.weights,
          .a = p.a,
          .cols = p.hidden,
          .width = p.width,
          .scale_shift = F == Format::kFp8 ? 5 : 0,
          .row_bytes = row_bytes_of(F, p.hidden),
          .order = order,
          .layout = p.layout,
          .limit = p.limit};
}
template <Format F>
DownTask down_task(const ExpertArgs& p) {
  return {.slots = {p.slots},
          .experts = p.experts,
          .one = p.one,
          .a = p.a,
          .y = p.y,
          .cols = p.width,
          .hidden = p.hidden,
          .scale_shift = F == Format::kFp8 ? 5 : 0,
          .row_bytes = row_bytes_of(F, p.width)};
}

}  // namespace deepinfer::kernels::cuda
