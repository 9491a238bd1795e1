#include "cache/state_pool.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::cache {
namespace {

constexpr int kPoison = 0xff;  // NaN as fp32, as e4m3 code and as ue8m0 scale

}  // namespace

StatePlan StatePlan::make(const ModelConfig& c, kernels::RecordFormat format, int backtracking) {
  StatePlan plan{.format = format,
                 .window = c.sliding_window,
                 .backtracking = backtracking < 0 ? c.default_ring_slots() - c.sliding_window : backtracking,
                 .num_layers = c.num_hidden_layers,
                 .num_drafts = c.num_nextn_predict_layers,
                 .boundary = c.boundary_layer(),
                 .head_dim = c.head_dim,
                 .tail_layers = {}};
  for (int layer : c.kv_source_layer_ids) {
    if (c.compress_ratios[static_cast<size_t>(layer)] == 2) plan.tail_layers.push_back(layer);
  }
  return plan;
}

int64_t StatePlan::slot_bytes() const {
  return num_windows() * window_bytes() + static_cast<int64_t>(tail_layers.size()) * tail_bytes();
}

std::string StatePlan::description() const {
  return fmt::format("state slot {} B: {} layer and {} draft windows of {} records ({} B each), {} tails of {} B",
                     slot_bytes(), num_layers, num_drafts, ring(), window_bytes(), tail_layers.size(), tail_bytes());
}

Result<StatePool> StatePool::create(Device& device, const StatePlan& plan, int num_slots) {
  if (num_slots < 1) return fail(Code::kInvalid, "{} state slots: at least 1", num_slots);
  StatePool pool;
  pool.plan_ = plan;
  pool.num_slots_ = num_slots;
  DI_TRY(pool.memory_, device.allocate(plan.slot_bytes() * num_slots));
  return pool;
}

kernels::WindowCache StatePool::window(int layer) const {
  DI_CHECK(layer >= 0 && layer < plan_.num_windows(), "window of layer {}", layer);
  // After the tails, which as floats want to lie even.
  const int64_t offset = static_cast<int64_t>(plan_.tail_layers.size()) * num_slots_ * plan_.tail_bytes() +
                         layer * num_slots_ * plan_.window_bytes();
  return {.data = static_cast<std::byte*>(memory_.data()) + offset,
          .ring = plan_.ring(),
          .window = plan_.window,
          .head_dim = plan_.head_dim,
          .format = plan_.format};
}

kernels::TailCache StatePool::tail(int layer) const {
  auto it = std::find(plan_.tail_layers.begin(), plan_.tail_layers.end(), layer);
  DI_CHECK(it != plan_.tail_layers.end(), "layer {} has no open groups", layer);
  const int64_t offset = (it - plan_.tail_layers.begin()) * num_slots_ * plan_.tail_bytes();
  return {.data = reinterpret_cast<float*>(static_cast<std::byte*>(memory_.data()) + offset),
          .ring = plan_.tail_ring(),
          .head_dim = plan_.head_dim};
}

void StatePool::hand_out([[maybe_unused]] Stream& stream, int32_t slot) {
  DI_CHECK(slot >= 0 && slot < num_slots_, "slot {} of {}", slot, num_slots_);
#ifndef NDEBUG
  for (int layer = 0; layer < plan_.num_windows(); ++layer)
    stream.fill(window(layer).record(slot, 0), kPoison, plan_.window_bytes());
  for (int layer : plan_.tail_layers) stream.fill(tail(layer).record(slot, 0), kPoison, plan_.tail_bytes());
#endif
}

void StatePool::copy_slot(Stream& stream, int32_t to, int32_t from) {
  for (int layer = 0; layer < plan_.num_windows(); ++layer)
    stream.copy(window(layer).record(to, 0), window(layer).record(from, 0), plan_.window_bytes());
  for (int layer : plan_.tail_layers)
    stream.copy(tail(layer).record(to, 0), tail(layer).record(from, 0), plan_.tail_bytes());
}

// Windows of layers and draft stages, then tails: f(spec, record bytes, first position, record(slot, position)).
template <typename F>
void StatePool::components(const PackedHeader& h, F&& f) const {
  int64_t record_bytes = kernels::window_record_bytes(plan_.format, plan_.head_dim);
  for (int layer = 0; layer < plan_.num_windows(); ++layer) {
    int64_t floor = layer < plan_.boundary ? h.producer_floor : h.consumer_floor;
    int64_t first = std::min(h.end_pos, std::max({h.end_pos - plan_.window, floor, int64_t{0}}));
    kernels::WindowCache cache = window(layer);
    f(ComponentSpec{ComponentKind::kWindow, layer, (h.end_pos - first) * record_bytes}, record_bytes, first,
      [cache](int32_t slot, int64_t pos) { return cache.record(slot, pos); });
  }
  for (int layer : plan_.tail_layers) {
    int64_t bytes = int64_t{2} * plan_.head_dim * 4, first = h.end_pos / 2 * 2;  // one row pair at an odd position
    kernels::TailCache cache = tail(layer);
    f(ComponentSpec{ComponentKind::kTail, layer, (h.end_pos - first) * bytes}, bytes, first,
      [cache](int32_t slot, int64_t pos) { return reinterpret_cast<std::byte*>(cache.record(slot, pos)); });
  }
}

std::vector<std::byte> StatePool::export_state(Stream& stream, int32_t slot, PackedHeader header) const {
  header.kind = PackedKind::kState;
  header.format = plan_.format;
  std::vector<ComponentSpec> specs;
  components(header, [&](const ComponentSpec& spec, int64_t, int64_t, auto&&) { specs.push_back(spec); });
  PackedBuilder builder(header, specs);
  size_t i = 0;
  components(header, [&](const ComponentSpec&, int64_t record_bytes, int64_t first, auto&& record) {
    std::byte* to = builder.component(i++);
    for (int64_t pos = first; pos < header.end_pos; ++pos, to += record_bytes)
      stream.copy(to, record(slot, pos), record_bytes);
  });
  stream.synchronize();
  return std::move(builder).seal();
}

Result<void> StatePool::import_state(Stream& stream, int32_t slot, const PackedView& view) {
  const PackedHeader& h = view.header;
  if (h.kind != PackedKind::kState) return fail(Code::kInvalid, "packed: a block where a state is expected");
  if (h.format != plan_.format) return fail(Code::kInvalid, "packed: state records of another format");
  Result<void> status;
  components(h, [&](const ComponentSpec& spec, int64_t record_bytes, int64_t first, auto&& record) {
    auto bytes = view.component(spec.kind, spec.layer, spec.bytes);
    if (!bytes && status) status = tl::unexpected(bytes.error());
    if (!status) return;
    const std::byte* from = bytes->data();
    for (int64_t pos = first; pos < h.end_pos; ++pos, from += record_bytes)
      stream.copy(record(slot, pos), from, record_bytes);
  });
  stream.synchronize();
  return status;
}

}  // namespace deepinfer::cache
