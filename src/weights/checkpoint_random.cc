// A checkpoint without files: all weights generated into memory at once.

#include "weights/checkpoint_shared.h"
#include "weights/random_weights.h"

namespace deepinfer::weights {

Result<void> Checkpoint::Shared::fill_random(uint64_t seed, ThreadPool& pool) {
  specs = inventory(config);
  files.entries.reserve(2 * specs.size());  // locations point into it
  int64_t end = 0;
  auto place = [&](std::string name, StoredType type, std::vector<int64_t> shape, int64_t bytes) {
    files.entries.push_back(
        {.name = std::move(name), .type = type, .shape = std::move(shape), .offset = end, .bytes = bytes});
    end += (bytes + 63) / 64 * 64;
    return &files.entries.back();
  };
  for (const WeightSpec& s : specs) {
    by_name.emplace(s.name, static_cast<int>(locations.size()));
    Location& where = locations.emplace_back();
    where.codes = place(s.name, s.stored_type(), s.stored_shape(), s.code_bytes());
    if (s.is_quantised())
      where.scales = place(s.scale_name(), StoredType::kE8M0, {s.scale_rows(), s.scale_cols()}, s.scale_bytes());
  }
  DI_TRY(std::byte * base, memory.allocate(end));
  pool.each(static_cast<int64_t>(specs.size()), [&](int64_t i) {
    const RandomTensor tensor(specs[static_cast<size_t>(i)], seed);
    const Location& where = locations[static_cast<size_t>(i)];
    tensor.codes(0, {base + where.codes->offset, static_cast<size_t>(where.codes->bytes)});
    if (where.scales != nullptr)
      tensor.scales(0, {base + where.scales->offset, static_cast<size_t>(where.scales->bytes)});
  });
  return {};
}

Result<Checkpoint> Checkpoint::random(const ModelConfig& config, uint64_t seed, ThreadPool& pool) {
  auto shared = std::make_shared<Shared>();
  shared->config = config;
  DI_TRY_VOID(shared->fill_random(seed, pool));
  return Checkpoint(std::move(shared));
}

}  // namespace deepinfer::weights
