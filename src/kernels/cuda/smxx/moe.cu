// The expert layer (model.md 3.6): no step of it needs the host to know which experts were chosen.
//
//   plan      one block counts the rows of each expert, lists the slots (token t, choice k: t K + k) by expert, and
//   cuts
//             each expert's list into tiles of as many tokens as a product's block takes; other blocks round the tokens
//   gate_up   a tile has the same channels of w1 and w3; it applies the activation and the routing weight, rounds to
//             e4m3 in groups of 32 and stores the result in the order that w2 wants
//   down      each slot's output, bf16
//   sum       slots ascending (that is, experts ascending), then the shared expert
//
// The shared expert goes the same way as one expert with all tokens; with up to 8 of them in the same launches.
#include "kernels/cuda/smxx/few_rows.cuh"
#include "kernels/cuda/smxx/route.cuh"
#include "kernels/cuda/smxx/tasks.cuh"

namespace deepinfer::kernels::cuda {
namespace {

constexpr int kMaxExperts = kMaxRouted;
constexpr int kPlanThreads = 1024;

// x rounded to e4m3 in groups of 32, by one block: 8 columns a thread, 4 threads a group.
__device__ void round_row(const Bf16* x, Bf16* rounded, int64_t d) {
  for (int64_t first = 0; first < d; first += kPlanThreads * 8) {
    const int64_t c = first + threadIdx.x * 8;
    __align__(16) Bf16 v[8] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (c < d) v[i] = x[c + i];
    }
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(v);
    round_pairs<4>(pairs, lane_max<4>(largest_of<4>(pairs)));
    if (c < d) *reinterpret_cast<uint4*>(rounded + c) = *reinterpret_cast<const uint4*>(v);
  }
}

// Block 0 makes the choice, if there is one to make, and the plan; block 1 + t rounds row t.
__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(MoePlanArgs p, RouteArgs choice, Rows<Bf16> x, int64_t d, Bf16* rounded) {
  begin_kernel();
  if (blockIdx.x > 0) {
    const int64_t t = blockIdx.x - 1;
    return round_row(x.row(t), rounded + t * d, d);
  }
  static_assert(kMostPlannedChoices <= kPlanThreads / kWarp);
  __shared__ RoutePlaces places[kMostPlannedChoices];
  if (threadIdx.x / kWarp < choice.num_rows) route_row(choice, threadIdx.x / kWarp, places[threadIdx.x / kWarp]);
  const auto& [ids, num_slots, top_k, expert_begin, num_experts, tile_tokens, list, tiles, num_tiles] = p;
  __shared__ int count[kMaxExperts], place[kMaxExperts], first_tile[kMaxExperts];
  for (int e = threadIdx.x; e < num_experts; e += kPlanThreads) count[e] = 0;
  __syncthreads();  // the block sees its choice as well
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

// Tiles of 8 tokens; both kinds of experts' tiles are counted through. Parts have 32 rows of w1 and w3, so that tokens
// are put in order less often, and 16 of w2: small tiles share out evenly.
constexpr int kFewTileTokens = 8, kUpM = 2, kDownM = 1;
template <int kM, typename Task>
__global__ void __launch_bounds__(kProductThreads, 2)
    few_experts_kernel(FewTask<Task> experts, FewTask<Task> one, FewMemory memory) {
  begin_kernel();
  extern __shared__ __align__(128) uint8_t shared[];
  few_rows<Format::kFp8, 1, 1>(one, memory, shared, false, true);
  few_rows<Format::kFp4, kM, 1>(experts, memory, shared, false, true);
}

// Experts of one format in a launch for few tokens.
struct FewExperts {
  int num_rows;                           // tokens; 0: no such experts
  int cols, rows, part_rows, least_rows;  // rows: of w1 and w3, or of w2; a tile has at least least_rows
  // Of a tile: the fewest that give each warp equally many segments, or just the fewest.
  int parts(bool balances) const {
    int parts = std::max(1, least_rows / part_rows);
    while (balances && parts < kProductWarps && num_segments_of(cols) % (kProductWarps / parts) != 0) parts *= 2;
    return parts;
  }
  int tile_rows(bool balances) const { return part_rows * parts(balances); }
  int sum_bytes(bool balances, int tokens) const {
    return num_rows == 0 ? 0 : few_sum_bytes(cols, tile_rows(balances), tokens);
  }
  template <typename Task>
  FewTask<Task> task(const Task& task, bool balances, int first_block) const {
    const int row_tiles = num_rows == 0 ? 0 : static_cast<int>(blocks_for(rows, tile_rows(balances)));
    return {task, row_tiles, kFewTileTokens, num_rows == 0 ? 1 : parts(balances), first_block};
  }
};

template <int kM, typename Task>
void launch_few(const char* name, cudaStream_t stream, const FewExperts& experts, const FewExperts& one, int max_tiles,
                const Task& expert_task, const Task& one_task) {
  const int tokens = std::min(kFewTileTokens, std::max(experts.num_rows, one.num_rows));
  const int stage = std::max(one.num_rows == 0 ? 0 : FewStage<Format::kFp8, 1>::bytes(tokens),
                             experts.num_rows == 0 ? 0 : FewStage<Format::kFp4, kM>::bytes(tokens));
  auto plan_for = [&](bool balances) {
    return plan_few_memory(stage, std::max(one.sum_bytes(balances, tokens), experts.sum_bytes(balances, tokens)), 0,
                           tokens);
  };
  const bool balances = plan_for(true).fits;
  const FewPlan plan = plan_for(balances);
  const auto first = one.task(one_task, balances, 0);
  const int first_tiles = first.row_tiles * static_cast<int>(blocks_for(one.num_rows, kFewTileTokens));
  const auto then = experts.task(expert_task, balances, first_tiles);
  launch_persistent(name, few_experts_kernel<kM, Task>, first_tiles + then.row_tiles * max_tiles, plan, stream, then,
                    first, plan.memory);
}

template <Format F>
void launch_experts_as(cudaStream_t stream, const ExpertArgs& p) {
  const GateUpTask gate_up = gate_up_task<F>(p, order_of(F));
  const DownTask down = down_task<F>(p);
  auto grid = [&](int rows, int a_tile) {
    return dim3(static_cast<unsigned>(blocks_for(rows, a_tile)), static_cast<unsigned>(p.slots.max_tiles));
  };
  if (p.slots.tile_tokens == 64) {
    launch_many<F, 1, 4>(stream, grid(p.width, 32), gate_up);
    launch_many<F, 1, 4>(stream, grid(p.hidden, 64), down);
  } else {
    launch_many<F, 2, 8>(stream, grid(p.width, 64), gate_up);
    launch_many<F, 2, 8>(stream, grid(p.hidden, 128), down);
  }
}

}  // namespace

// Measured: an expert's weights pass through twice as fast for 8 tokens as for 64.
int moe_tile_tokens(double rows_per_expert) {
  return rows_per_expert <= 9 ? kFewTileTokens : rows_per_expert <= kManyRows ? 64 : kTileTokens;
}

void launch_moe_plan(cudaStream_t stream, const MoePlanArgs& plan, const RouteArgs& choice, Rows<Bf16> x, int num_rows,
                     int64_t d, Bf16* rounded) {
  const unsigned blocks = 1 + (rounded == nullptr ? 0u : static_cast<unsigned>(num_rows));
  start("moe plan", plan_kernel, blocks, kPlanThreads, 0, stream, plan, choice, x, d, rounded);
}

void launch_few_experts(cudaStream_t stream, const ExpertArgs* experts, const ExpertArgs* shared) {
  const ExpertArgs none{};
  const ExpertArgs &e = experts == nullptr ? none : *experts, &o = shared == nullptr ? none : *shared;
  // A tile of gate and up has whole scale groups of the activations of both.
  launch_few<kUpM>("few_gate_up", stream, {e.slots.num_rows, e.hidden, 2 * e.width, 16 * kUpM, 64},
                   {o.slots.num_rows, o.hidden, 2 * o.width, 16, 64}, e.slots.max_tiles,
                   gate_up_task<Format::kFp4>(e, Order::kNatural), gate_up_task<Format::kFp8>(o, Order::kNatural));
  launch_few<kDownM>("few_down", stream, {e.slots.num_rows, e.width, e.hidden, 16 * kDownM, 16},
                     {o.slots.num_rows, o.width, o.hidden, 16, 16}, e.slots.max_tiles, down_task<Format::kFp4>(e),
                     down_task<Format::kFp8>(o));
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
