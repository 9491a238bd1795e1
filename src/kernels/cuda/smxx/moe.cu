// The expert layer (model.md 3.6): no step of it needs the host to know which experts were chosen.
//
//   plan      one block counts the rows of each expert, lists the slots (token t, choice k: t K + k) by expert, and
//   cuts
//             each expert's list into tiles of as many tokens as a product's block takes
//   gate_up   a block multiplies the same channels of w1 and w3, applies the activation and the routing weight, rounds
//   to
//             e4m3 in groups of 32 and stores the result in the order that w2 wants
//   down      each slot's output, bf16
//   sum       slots ascending (that is, experts ascending), then the shared expert
//
// The shared expert goes the same way as one expert with all tokens.
#include "kernels/cuda/smxx/product.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kMaxExperts = kMaxRouted;
constexpr int kPlanThreads = 1024;

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

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(Rows<int32_t> ids, int num_slots, int top_k, int expert_begin, int num_experts, int tile_tokens,
                int32_t* list, MoeTile* tiles, int* num_tiles) {
  __shared__ int count[kMaxExperts], place[kMaxExperts], first_tile[kMaxExperts];
  for (int e = threadIdx.x; e < num_experts; e += kPlanThreads) count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < num_slots; i += kPlanThreads) {
    const int e = ids.row(i / top_k)[i % top_k] - expert_begin;
    if (e >= 0 && e < num_experts) atomicAdd(count + e, 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int slots = 0, number = 0;
    for (int e = 0; e < num_experts; ++e) {
      place[e] = slots;
      first_tile[e] = number;
      slots += count[e];
      number += (count[e] + tile_tokens - 1) / tile_tokens;
    }
    *num_tiles = number;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < num_experts; e += kPlanThreads) {
    for (int at = 0, i = first_tile[e]; at < count[e]; at += tile_tokens, ++i)
      tiles[i] = {e, place[e] + at, min(tile_tokens, count[e] - at)};
  }
  __syncthreads();
  // The order of an expert's slots depends on chance, their results do not.
  for (int i = threadIdx.x; i < num_slots; i += kPlanThreads) {
    const int e = ids.row(i / top_k)[i % top_k] - expert_begin;
    if (e >= 0 && e < num_experts) list[atomicAdd(place + e, 1)] = i;
  }
}

struct GateUpTask {
  Slots slots;
  const ExpertWeights* experts;  // nullptr: `one`
  ExpertWeights one;
  const Bf16* x;
  Rows<float> weights;  // [T, K]; data nullptr: none
  Bf16* a;              // [slots][width]
  int cols, width, rows_per_scale;
  int64_t row_bytes;
  Order order;  // of a
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
      const int at =
          order == Order::kPairs4 ? place_of(Order::kPairs4, channel % 8) : place_of(Order::kPairs8, channel % 8);
      a[static_cast<int64_t>(slot) * width + channel / 8 * 8 + at] = to_b(e4m3_value(e4m3_code(v / scale)) * scale);
    }
  }
};

struct DownTask {
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

constexpr int kSumThreads = 256;
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(Rows<Bf16> slots, Rows<int32_t> ids, int expert_begin, int num_experts, int top_k, const Bf16* shared,
               int64_t d, Rows<Bf16> z) {
  const int64_t t = blockIdx.y, c = (static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x) * 2;
  if (c >= d) return;
  float2 sum = {0, 0};
  for (int k = 0; k < top_k; ++k) {
    const int e = ids.row(t)[k] - expert_begin;
    if (e < 0 || e >= num_experts) continue;
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(slots.row(t) + k * d + c));
    sum.x += v.x;
    sum.y += v.y;
  }
  if (shared != nullptr) {
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(shared + t * d + c));
    sum.x += v.x;
    sum.y += v.y;
  }
  z.row(t)[c] = to_b(sum.x);
  z.row(t)[c + 1] = to_b(sum.y);
}

template <Format F>
void launch_gate_up(cudaStream_t stream, const GateUpTask& task) {
  auto grid = [&](int channels) {
    return dim3(static_cast<unsigned>(blocks_for(task.width, channels)), static_cast<unsigned>(task.slots.max_tiles));
  };
  switch (task.slots.tile_tokens) {
    case 8:
      return launch_few<F, 4, 1>(stream, grid(32), task);
    case 16:
      if constexpr (F == Format::kFp4) return launch_few<F, 4, 2>(stream, grid(32), task);
      break;
    case 64:
      return launch_many<F, 1, 4>(stream, grid(32), task);
    default:
      break;
  }
  launch_many<F, 2, 8>(stream, grid(64), task);
}
template <Format F>
void launch_down(cudaStream_t stream, const DownTask& task) {
  auto grid = [&](int rows) {
    return dim3(static_cast<unsigned>(blocks_for(task.hidden, rows)), static_cast<unsigned>(task.slots.max_tiles));
  };
  switch (task.slots.tile_tokens) {
    case 8:
      return launch_few<F, 2, 1>(stream, grid(32), task);
    case 16:
      if constexpr (F == Format::kFp4) return launch_few<F, 2, 2>(stream, grid(32), task);
      break;
    case 64:
      return launch_many<F, 1, 4>(stream, grid(64), task);
    default:
      break;
  }
  launch_many<F, 2, 8>(stream, grid(128), task);
}

template <Format F>
void launch_experts_as(cudaStream_t stream, const ExpertArgs& p) {
  const int rows_per_scale = F == Format::kFp8 ? 32 : 1;
  launch_gate_up<F>(stream, {.slots = {p.slots},
                             .experts = p.experts,
                             .one = p.one,
                             .x = p.x,
                             .weights = p.weights,
                             .a = p.a,
                             .cols = p.hidden,
                             .width = p.width,
                             .rows_per_scale = rows_per_scale,
                             .row_bytes = row_bytes_of(F, p.hidden),
                             .order = order_of(F),
                             .limit = p.limit});
  launch_down<F>(stream, {.slots = {p.slots},
                          .experts = p.experts,
                          .one = p.one,
                          .a = p.a,
                          .y = p.y,
                          .cols = p.width,
                          .hidden = p.hidden,
                          .rows_per_scale = rows_per_scale,
                          .row_bytes = row_bytes_of(F, p.width)});
}

}  // namespace

int moe_tile_tokens(double rows_per_expert) {
  return rows_per_expert <= 6 ? 8 : rows_per_expert <= 12 ? 16 : rows_per_expert <= 96 ? 64 : 128;
}

void launch_moe_plan(cudaStream_t stream, Rows<int32_t> ids, int num_slots, int top_k, int expert_begin,
                     int num_experts, int tile_tokens, int32_t* list, MoeTile* tiles, int* num_tiles) {
  plan_kernel<<<1, kPlanThreads, 0, stream>>>(ids, num_slots, top_k, expert_begin, num_experts, tile_tokens, list,
                                              tiles, num_tiles);
  launched("moe plan");
}

void launch_experts(cudaStream_t stream, Format format, const ExpertArgs& a) {
  format == Format::kFp4 ? launch_experts_as<Format::kFp4>(stream, a) : launch_experts_as<Format::kFp8>(stream, a);
}

void launch_moe_sum(cudaStream_t stream, Rows<Bf16> slots, Rows<int32_t> ids, int expert_begin, int num_experts,
                    int top_k, const Bf16* shared, int num_rows, int64_t d, Rows<Bf16> z) {
  const dim3 grid(static_cast<unsigned>(blocks_for(d, 2 * kSumThreads)), num_rows);
  sum_kernel<<<grid, kSumThreads, 0, stream>>>(slots, ids, expert_begin, num_experts, top_k, shared, d, z);
  launched("moe sum");
}

}  // namespace deepinfer::kernels::cuda
