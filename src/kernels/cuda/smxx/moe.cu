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
#include "kernels/cuda/smxx/tasks.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kMaxExperts = kMaxRouted;
constexpr int kPlanThreads = 1024;

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(Rows<int32_t> ids, int num_slots, int top_k, int expert_begin, int num_experts, int tile_tokens,
                int32_t* list, MoeTile* tiles, int* num_tiles) {
  begin_kernel();
  __shared__ int count[kMaxExperts], place[kMaxExperts], first_tile[kMaxExperts];
  for (int e = threadIdx.x; e < num_experts; e += kPlanThreads) count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < num_slots; i += kPlanThreads) {
    const int e = ids.row(i / top_k)[i % top_k] - expert_begin;
    if (e >= 0 && e < num_experts) atomicAdd(count + e, 1);
  }
  __syncthreads();
  // Slots and tiles before each expert: a warp scans 32 experts, then the warps' totals are added.
  __shared__ int slots_of_warp[kMaxExperts / kWarp], tiles_of_warp[kMaxExperts / kWarp];
  const int e0 = threadIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int slots = 0, number = 0;
  if (e0 < kMaxExperts) {
    const int mine = e0 < num_experts ? count[e0] : 0, my_tiles = (mine + tile_tokens - 1) / tile_tokens;
    slots = mine, number = my_tiles;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int s = __shfl_up_sync(0xffffffffu, slots, step), n = __shfl_up_sync(0xffffffffu, number, step);
      if (lane >= step) slots += s, number += n;
    }
    if (lane == kWarp - 1) slots_of_warp[warp] = slots, tiles_of_warp[warp] = number;
    slots -= mine, number -= my_tiles;
  }
  __syncthreads();
  if (e0 < kMaxExperts) {
    for (int w = 0; w < warp; ++w) slots += slots_of_warp[w], number += tiles_of_warp[w];
    place[e0] = slots;
    first_tile[e0] = number;
    if (e0 == kMaxExperts - 1)
      *num_tiles = number + (e0 < num_experts ? (count[e0] + tile_tokens - 1) / tile_tokens : 0);
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

constexpr int kSumThreads = 256;
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(Rows<Bf16> slots, Rows<int32_t> ids, int expert_begin, int num_experts, int top_k, const Bf16* shared,
               int64_t d, Rows<Bf16> z) {
  begin_kernel();
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
  launch_gate_up<F>(stream, gate_up_task<F>(p));
  launch_down<F>(stream, down_task<F>(p));
}

}  // namespace

int moe_tile_tokens(double rows_per_expert) {
  return rows_per_expert <= 6 ? 8 : rows_per_expert <= 12 ? 16 : rows_per_expert <= 96 ? 64 : 128;
}

void launch_moe_plan(cudaStream_t stream, Rows<int32_t> ids, int num_slots, int top_k, int expert_begin,
                     int num_experts, int tile_tokens, int32_t* list, MoeTile* tiles, int* num_tiles) {
  start("moe plan", plan_kernel, 1, kPlanThreads, 0, stream, ids, num_slots, top_k, expert_begin, num_experts,
        tile_tokens, list, tiles, num_tiles);
}

void launch_experts(cudaStream_t stream, Format format, const ExpertArgs& a) {
  format == Format::kFp4 ? launch_experts_as<Format::kFp4>(stream, a) : launch_experts_as<Format::kFp8>(stream, a);
}

void launch_moe_sum(cudaStream_t stream, Rows<Bf16> slots, Rows<int32_t> ids, int expert_begin, int num_experts,
                    int top_k, const Bf16* shared, int num_rows, int64_t d, Rows<Bf16> z) {
  const dim3 grid(static_cast<unsigned>(blocks_for(d, 2 * kSumThreads)), num_rows);
  start("moe sum", sum_kernel, grid, kSumThreads, 0, stream, slots, ids, expert_begin, num_experts, top_k, shared, d,
        z);
}

}  // namespace deepinfer::kernels::cuda
