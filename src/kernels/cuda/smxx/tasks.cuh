// What the product kernels work on: dense weights, and the two products of an expert layer. A task tells a block its
// weights and tokens, and takes the sums of its tile.
#pragma once

#include "kernels/cuda/smxx/product.cuh"

namespace deepinfer::kernels::cuda {

struct LinearTask : ProductArgs {
  static constexpr bool kIsPlanned = false;  // which weights a block takes is known before the kernel starts

  __device__ const ProductJob& job() const {
    int j = 0;
    while (j + 1 < num_jobs && static_cast<int>(blockIdx.x) >= jobs[j + 1].first_tile) ++j;
    return jobs[j];
  }
  __device__ bool locate(int tile_rows, int tile_tokens, WeightTile& w, TokenTile& t) const {
    const ProductJob& j = job();
    const int first = (static_cast<int>(blockIdx.x) - j.first_tile) * tile_rows;
    w.codes[0] = w.codes[1] = j.codes + first * row_bytes;
    w.scales[0] = w.scales[1] =
        j.scales == nullptr ? nullptr : j.scales + static_cast<int64_t>(first / j.rows_per_scale) * (cols / 32);
    w.num_rows[0] = w.num_rows[1] = j.num_rows - first;
    w.half = tile_rows;
    w.rows_per_scale = j.rows_per_scale;
    const int begin = static_cast<int>(blockIdx.y) * tile_tokens;
    t = {x + j.x_column, x_stride, nullptr, begin, min(tile_tokens, num_tokens - begin), 1};
    return true;
  }
  __device__ void finish(const SumTile& sums, int tile_rows, const TokenTile& tokens) const {
    const ProductJob& j = job();
    const int first = (static_cast<int>(blockIdx.x) - j.first_tile) * tile_rows;
    for (int i = threadIdx.x; i < tile_rows * tokens.count; i += kProductThreads) {
      const int row = i % tile_rows, token = i / tile_rows;
      if (first + row >= j.num_rows) continue;
      const int64_t at = (tokens.begin + token) * j.y_stride + first + row;
      const float sum = sums.at(row, token);
      if (j.accumulates) {
        static_cast<float*>(j.y)[at] += sum;
      } else if (j.keeps_f32) {
        static_cast<float*>(j.y)[at] = sum;
      } else {
        static_cast<Bf16*>(j.y)[at] = to_b(sum);
      }
    }
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
  __device__ bool tile(int tile_tokens, MoeTile& t) const {
    if (tiles == nullptr) {
      t = {0, static_cast<int>(blockIdx.y) * tile_tokens, 0};
      t.count = min(tile_tokens, num_rows - t.begin);
      return true;
    }
    if (static_cast<int>(blockIdx.y) >= *num_tiles) return false;
    t = tiles[blockIdx.y];
    return true;
  }
  __device__ int slot(int i) const { return list == nullptr ? i : list[i]; }
};

struct GateUpTask {
  static constexpr bool kIsPlanned = true;
  Slots slots;
  const ExpertWeights* experts;  // nullptr: `one`
  ExpertWeights one;
  const Bf16* x;
  Rows<float> weights;  // [T, K]; data nullptr: none
  Bf16* a;              // [slots][width]
  int cols, width, rows_per_scale;
  int64_t row_bytes;
  Order order;   // of a
  bool is_wide;  // a in wide order
  float limit;

  __device__ bool locate(int tile_rows, int tile_tokens, WeightTile& w, TokenTile& t) const {
    MoeTile tile;
    if (!slots.tile(tile_tokens, tile)) return false;
    const ExpertWeights& e = experts == nullptr ? one : experts[tile.expert];
    const int first = static_cast<int>(blockIdx.x) * (tile_rows / 2);
    const int64_t scale_at = static_cast<int64_t>(first / rows_per_scale) * (cols / 32);
    w.codes[0] = static_cast<const uint8_t*>(e.w1.codes) + first * row_bytes;
    w.codes[1] = static_cast<const uint8_t*>(e.w3.codes) + first * row_bytes;
    w.scales[0] = e.w1.scales + scale_at;
    w.scales[1] = e.w3.scales + scale_at;
    w.num_rows[0] = w.num_rows[1] = width - first;
    w.half = tile_rows / 2;
    w.rows_per_scale = rows_per_scale;
    t = {x, cols, slots.list, tile.begin, tile.count, slots.top_k};
    return true;
  }
  __device__ void finish(const SumTile& sums, int tile_rows, const TokenTile& tokens) const {
    const int half = tile_rows / 2, first = static_cast<int>(blockIdx.x) * half, lane = threadIdx.x % kWarp;
    const int groups = half / 32;
    for (int i = threadIdx.x / kWarp; i < groups * tokens.count; i += kProductWarps) {  // a warp 32 channels of a token
      const int c = i % groups * 32 + lane, token = i / groups, channel = first + c;
      if (channel - lane >= width) continue;
      const int slot = slots.slot(tokens.begin + token);
      float v = swiglu_value(round_b(sums.at(c, token)), round_b(sums.at(half + c, token)), limit);
      if (weights.data != nullptr) v *= weights.row(slot / slots.top_k)[slot % slots.top_k];
      v = round_b(v);
      const float scale = ue8m0_value(ue8m0_ceil(fmaxf(lane_max(fabsf(v)), kActFloor), kInvE4M3));
      const int at = channel / 8 * 8 + (order == Order::kPairs4 ? place_of(Order::kPairs4, channel % 8)
                                                                : place_of(Order::kPairs8, channel % 8));
      a[static_cast<int64_t>(slot) * width + (is_wide ? wide_place(at) : at)] =
          to_b(e4m3_value(e4m3_code(v / scale)) * scale);
    }
  }
};

struct DownTask {
  static constexpr bool kIsPlanned = true;
  Slots slots;
  const ExpertWeights* experts;
  ExpertWeights one;
  const Bf16* a;
  Rows<Bf16> y;  // slot t K + k goes to columns k d .. of row t
  int cols, hidden, rows_per_scale;
  int64_t row_bytes;

  __device__ bool locate(int tile_rows, int tile_tokens, WeightTile& w, TokenTile& t) const {
    MoeTile tile;
    if (!slots.tile(tile_tokens, tile)) return false;
    const Weight& m = experts == nullptr ? one.w2 : experts[tile.expert].w2;
    const int first = static_cast<int>(blockIdx.x) * tile_rows;
    w.codes[0] = w.codes[1] = static_cast<const uint8_t*>(m.codes) + first * row_bytes;
    w.scales[0] = w.scales[1] = m.scales + static_cast<int64_t>(first / rows_per_scale) * (cols / 32);
    w.num_rows[0] = w.num_rows[1] = hidden - first;
    w.half = tile_rows;
    w.rows_per_scale = rows_per_scale;
    t = {a, cols, slots.list, tile.begin, tile.count, 1};
    return true;
  }
  __device__ void finish(const SumTile& sums, int tile_rows, const TokenTile& tokens) const {
    const int first = static_cast<int>(blockIdx.x) * tile_rows;
    for (int i = threadIdx.x; i < tile_rows * tokens.count; i += kProductThreads) {
      const int row = i % tile_rows, token = i / tile_rows;
      if (first + row >= hidden) continue;
      const int slot = slots.slot(tokens.begin + token);
      y.row(slot / slots.top_k)[static_cast<int64_t>(slot % slots.top_k) * hidden + first + row] =
          to_b(sums.at(row, token));
    }
  }
};

template <Format F>
GateUpTask gate_up_task(const ExpertArgs& p) {
  return {.slots = {p.slots},
          .experts = p.experts,
          .one = p.one,
          .x = p.x,
          .weights = p.weights,
          .a = p.a,
          .cols = p.hidden,
          .width = p.width,
          .rows_per_scale = F == Format::kFp8 ? 32 : 1,
          .row_bytes = row_bytes_of(F, p.hidden),
          .order = order_of(F),
          .is_wide = p.is_wide,
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
          .rows_per_scale = F == Format::kFp8 ? 32 : 1,
          .row_bytes = row_bytes_of(F, p.width)};
}

}  // namespace deepinfer::kernels::cuda
