#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cache/global_pool.h"
#include "cache/window_pool.h"
#include "device/cpu/cpu_stream.h"

namespace deepinfer::cache {
namespace {

using kernels::RecordFormat;

ModelConfig released() {
  ModelConfig c;
  c.compress_ratios.assign(2, 0);
  c.compress_ratios.insert(c.compress_ratios.end(), 18, 2);
  c.compress_ratios.insert(c.compress_ratios.end(), 20, 1);
  c.compress_ratios.insert(c.compress_ratios.end(), 3, 0);
  c.kv_source_layer_ids = {2, 8, 14, 20};
  c.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  c.engram_layer_ids = {1, 14};
  c.dspark_target_layer_ids = {37, 38, 39};
  return c;
}

ModelConfig small() {
  ModelConfig c = released();
  c.head_dim = 64, c.index_head_dim = 32, c.sliding_window = 8;
  return c;
}

TEST(GlobalPool, BytesOfTheReleasedModel) {
  const ModelConfig c = released();
  const GlobalLayout layout = GlobalLayout::make(c, RecordFormat::kPacked);
  EXPECT_EQ(layout.bytes_per_token(), 890);
  EXPECT_EQ(layout.block_bytes(), 113920);
  EXPECT_EQ(layout.bytes_per_token(), c.global_kv_bytes_per_token());
  auto device = make_cpu_device();
  auto pool = GlobalPool::create(*device, c, RecordFormat::kPacked, 10);
  ASSERT_TRUE(pool);
  EXPECT_EQ(pool->bytes(), 10 * 113920);  // no padding
}

TEST(GlobalPool, RefusesWhatDoesNotFit) {
  auto device = make_cpu_device();
  auto pool = GlobalPool::create(*device, released(), RecordFormat::kPacked, int64_t{1} << 30);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::kExhausted);
  EXPECT_FALSE(GlobalPool::create(*device, released(), RecordFormat::kPacked, 0));
}

TEST(StatePool, BytesOfTheReleasedModel) {
  const ModelConfig c = released();
  const StatePlan plan = StatePlan::make(c, RecordFormat::kPacked);
  EXPECT_EQ(plan.ring(), 134);
  EXPECT_EQ(plan.window_bytes() * 40, 2 * 1415040);
  EXPECT_EQ(plan.window_bytes() * 3, 212256);
  EXPECT_EQ(plan.tail_bytes() * 3, 86016);
  EXPECT_EQ(plan.slot_bytes(), 3128352);
  EXPECT_EQ(plan.slot_bytes(), c.private_state_bytes(c.default_ring_slots()));
  EXPECT_NE(plan.description().find("3128352 B"), std::string::npos);
}

// Fills blocks and slots with bytes that name their place.
template <typename Pool>
void scribble(Pool& pool, std::byte* data, int64_t bytes, uint32_t seed) {
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
  (void)pool;
}

class Pools : public testing::TestWithParam<RecordFormat> {
 protected:
  Pools()
      : device_(make_cpu_device()),
        stream_(1),
        global_(GlobalPool::create(*device_, small(), GetParam(), 4).value()),
        states_(StatePool::create(*device_, StatePlan::make(small(), GetParam()), 3).value()) {
    for (const auto& s : global_.layout().sources) {
      scribble(global_, global_.cache(s.layer).main + s.main_bytes, 2 * s.main_bytes, static_cast<uint32_t>(s.layer));
      scribble(global_, global_.cache(s.layer).index + s.index_bytes, 2 * s.index_bytes,
               static_cast<uint32_t>(s.layer + 99));
    }
    for (int layer = 0; layer < states_.plan().num_windows(); ++layer)
      scribble(states_, states_.window(layer).data, 2 * states_.plan().window_bytes(), static_cast<uint32_t>(layer));
    for (int layer : states_.plan().tail_layers)
      scribble(states_, reinterpret_cast<std::byte*>(states_.tail(layer).data), 2 * states_.plan().tail_bytes(),
               static_cast<uint32_t>(layer));
  }
  std::unique_ptr<Device> device_;
  CpuStream stream_;
  GlobalPool global_;
  StatePool states_;
};

TEST_P(Pools, BlockComesBackElsewhere) {
  PackedHeader header{.provenance = Provenance::kReplayed, .end_pos = 256, .num_ids = 128};
  header.name.fill(7);
  header.ids.fill(42);
  const auto bytes = global_.export_block(stream_, 1, header);
  auto view = parse_packed(bytes);
  ASSERT_TRUE(view) << view.error().message;
  header.format = GetParam();
  EXPECT_EQ(view->header, header);
  ASSERT_TRUE(global_.import_block(stream_, 3, *view));
  EXPECT_EQ(global_.export_block(stream_, 3, header), bytes);
  EXPECT_NE(global_.export_block(stream_, 2, header), bytes);
  global_.copy_block(stream_, 2, 1);
  EXPECT_EQ(global_.export_block(stream_, 2, header), bytes);
}

TEST_P(Pools, StateComesBackElsewhereAtEveryPosition) {
  for (int64_t end = 0; end < 40; ++end) {
    for (int64_t floor : {int64_t{0}, end - 3, end + 5}) {
      const PackedHeader header{.end_pos = end, .producer_floor = 0, .consumer_floor = std::max<int64_t>(0, floor)};
      const auto bytes = states_.export_state(stream_, 1, header);
      auto view = parse_packed(bytes);
      ASSERT_TRUE(view) << view.error().message;
      states_.hand_out(stream_, 2);
      ASSERT_TRUE(states_.import_state(stream_, 2, *view));
      EXPECT_EQ(states_.export_state(stream_, 2, header), bytes) << end << " from " << floor;
    }
  }
  states_.copy_slot(stream_, 2, 0);
  const PackedHeader header{.end_pos = 17};
  EXPECT_EQ(states_.export_state(stream_, 2, header), states_.export_state(stream_, 0, header));
}

TEST_P(Pools, StoredWindowsComeBackAtEveryEnd) {
  const StatePlan& plan = states_.plan();
  for (WindowHalves halves : {WindowHalves::kProducers, WindowHalves::kBoth}) {
    WindowPool stored = WindowPool::create(*device_, plan, halves, 2).value();
    EXPECT_EQ(stored.bytes(), 2 * WindowPool::place_bytes(plan, halves));
    for (int64_t end = 1; end < 3 * plan.ring(); ++end) {
      stored.store(stream_, 1, states_, 1, end);
      states_.hand_out(stream_, 2);
      stored.load(stream_, states_, 2, 1, end);
      for (int layer = 0; layer < plan.num_windows(); ++layer) {
        const kernels::WindowCache window = states_.window(layer);
        if (halves == WindowHalves::kProducers && layer >= plan.boundary) break;
        for (int64_t at = std::max<int64_t>(0, end - plan.window); at < end; ++at)
          ASSERT_EQ(std::memcmp(window.record(1, at), window.record(2, at),
                                static_cast<size_t>(kernels::window_record_bytes(GetParam(), plan.head_dim))),
                    0)
              << "layer " << layer << " position " << at;
      }
    }
  }
}

TEST(WindowPool, APlaceOfTheReleasedModelIsWhatThePlanSays) {
  const StatePlan plan = StatePlan::make(released(), RecordFormat::kPacked);
  EXPECT_EQ(WindowPool::place_bytes(plan, WindowHalves::kProducers), 1'351'680);
  EXPECT_EQ(WindowPool::place_bytes(plan, WindowHalves::kBoth), 43 * 128 * 528);
}

TEST_P(Pools, RefuseWhatIsNotTheirs) {
  const auto block = global_.export_block(stream_, 1, {.end_pos = 128, .num_ids = 128});
  const auto state = states_.export_state(stream_, 1, {.end_pos = 20});
  EXPECT_FALSE(global_.import_block(stream_, 2, parse_packed(state).value()));
  EXPECT_FALSE(states_.import_state(stream_, 2, parse_packed(block).value()));
  const auto other = GetParam() == RecordFormat::kPacked ? RecordFormat::kF32 : RecordFormat::kPacked;
  GlobalPool pool = GlobalPool::create(*device_, small(), other, 2).value();
  EXPECT_FALSE(pool.import_block(stream_, 1, parse_packed(block).value()));
}

INSTANTIATE_TEST_SUITE_P(Formats, Pools, testing::Values(RecordFormat::kPacked, RecordFormat::kF32));

TEST(Packed, EveryDamagedByteIsNoticed) {
  const ComponentSpec specs[] = {
      {ComponentKind::kMain, 2, 40}, {ComponentKind::kIndex, 2, 0}, {ComponentKind::kWindow, 8, 9}};
  PackedBuilder builder({.end_pos = 128, .num_ids = 128}, specs);
  for (size_t i = 0; i < 3; ++i) std::fill_n(builder.component(i), specs[i].bytes, static_cast<std::byte>(i + 1));
  const auto bytes = std::move(builder).seal();
  const auto view = parse_packed(bytes).value();
  ASSERT_EQ(view.components.size(), 3u);
  EXPECT_EQ(view.component(ComponentKind::kWindow, 8, 9).value()[0], std::byte{3});
  EXPECT_FALSE(view.component(ComponentKind::kWindow, 8, 10));
  EXPECT_FALSE(view.component(ComponentKind::kWindow, 9, 9));
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit : {0, 3, 7}) {
      auto damaged = bytes;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(parse_packed(damaged)) << "byte " << i << " bit " << bit;
    }
  }
  for (size_t length = 0; length < bytes.size(); ++length) EXPECT_FALSE(parse_packed(std::span(bytes).first(length)));
}

TEST(Packed, AnyBytesAreSafe) {
  rc::check([](std::vector<uint8_t> junk, uint32_t count) {
    PackedBuilder builder({.end_pos = 128, .num_ids = 128}, {});
    auto bytes = std::move(builder).seal();
    // A header with an arbitrary component count and an arbitrary rest.
    std::memcpy(bytes.data() + bytes.size() - 16, &count, 4);
    for (uint8_t b : junk) bytes.push_back(static_cast<std::byte>(b));
    (void)parse_packed(bytes);
    (void)parse_packed(std::as_bytes(std::span(junk)));
  });
}

}  // namespace
}  // namespace deepinfer::cache
