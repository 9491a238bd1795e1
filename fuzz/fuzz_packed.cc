// The packed form of blocks and states: whatever the bytes, an error or a view that lies inside them and fits its pool.
//
// Checksums keep random bytes out, so the bytes also go through with their checksums made right.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "cache/global_pool.h"
#include "cache/state_pool.h"
#include "device/cpu/cpu_stream.h"

namespace {

using namespace deepinfer;

ModelConfig small_config() {
  ModelConfig c;
  c.num_hidden_layers = 3, c.num_nextn_predict_layers = 1, c.dspark_block_size = 2;
  c.compress_ratios = {0, 2, 1, 0};
  c.kv_source_layer_ids = c.index_source_layer_ids = {1, 2};
  c.head_dim = 32, c.index_head_dim = 32, c.sliding_window = 4;
  return c;
}

struct Pools {
  std::unique_ptr<Device> device = make_cpu_device();
  CpuStream stream{1};
  cache::GlobalPool global =
      cache::GlobalPool::create(*device, small_config(), kernels::RecordFormat::kPacked, 3).value();
  cache::StatePool states =
      cache::StatePool::create(*device, cache::StatePlan::make(small_config(), kernels::RecordFormat::kPacked), 2)
          .value();
};

void use(std::span<const std::byte> bytes) {
  static Pools pools;
  auto view = cache::parse_packed(bytes);
  if (!view) return;
  for (const auto& part : view->components)
    DI_CHECK(part.bytes.data() >= bytes.data() && part.bytes.data() + part.bytes.size() <= bytes.data() + bytes.size());
  (void)pools.global.import_block(pools.stream, 1, *view);
  (void)pools.states.import_state(pools.stream, 1, *view);
}

// The header's layout (cache/packed.cc): the component count ends the fixed part, 16 bytes an entry follow.
constexpr size_t kFixed = 8 + 4 + 4 + 48 + 8 + 4 + 512 + 16 + 16 + 4, kEntry = 16;

void repair(std::vector<std::byte>& bytes) {
  uint32_t count = 0;
  std::memcpy(&count, bytes.data() + kFixed - 4, 4);
  if (count > (bytes.size() - kFixed) / kEntry) return;
  const size_t table_end = kFixed + count * kEntry;
  if (table_end + 12 > bytes.size()) return;
  size_t at = table_end + 4;
  for (size_t i = 0; i < count; ++i) {
    int64_t length = 0;
    std::byte* entry = bytes.data() + kFixed + i * kEntry;
    std::memcpy(&length, entry + 8, 8);
    if (length < 0 || static_cast<size_t>(length) > bytes.size() - 8 - at) return;
    const uint32_t crc = crc32c({bytes.data() + at, static_cast<size_t>(length)});
    std::memcpy(entry + 4, &crc, 4);
    at += static_cast<size_t>(length);
  }
  const uint32_t crc = crc32c({bytes.data(), table_end});
  std::memcpy(bytes.data() + table_end, &crc, 4);
  const uint64_t whole = xxh64({bytes.data(), bytes.size() - 8});
  std::memcpy(bytes.data() + bytes.size() - 8, &whole, 8);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  use(bytes);
  if (size >= kFixed + 12) {
    repair(bytes);
    use(bytes);
  }
  return 0;
}
