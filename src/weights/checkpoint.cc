#include "weights/checkpoint.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "weights/checkpoint_shared.h"
#include "weights/verify.h"

namespace deepinfer::weights {
namespace {

// One positioned read: large enough for a disk, small enough to spread a slice over the threads.
constexpr int64_t kReadBytes = 4 << 20;

// Reads a rectangle of a tensor into packed rows with read(offset, span); pieces of about kReadBytes are handed to the
// pool's threads.
template <typename Read>
Result<void> read_rect(Read&& read, const ByteRect& rect, std::byte* out, ThreadPool* pool) {
  if (rect.size() == 0) return {};
  const bool is_contiguous = rect.row_bytes == rect.stride || rect.rows == 1;
  const int64_t unit = is_contiguous ? kReadBytes : std::max<int64_t>(1, kReadBytes / rect.row_bytes);  // bytes or rows
  const int64_t total = is_contiguous ? rect.size() : rect.rows;
  std::vector<Result<void>> results(static_cast<size_t>(ceil_div(total, unit)));
  auto piece = [&](int64_t i) {
    const int64_t begin = i * unit, end = std::min(total, begin + unit);
    Result<void>& result = results[static_cast<size_t>(i)];
    if (is_contiguous) {
      result = read(rect.offset + begin, {out + begin, static_cast<size_t>(end - begin)});
      return;
    }
    for (int64_t r = begin; r < end && result; ++r) {
      result = read(rect.offset + r * rect.stride, {out + r * rect.row_bytes, static_cast<size_t>(rect.row_bytes)});
    }
  };
  const int64_t num_pieces = static_cast<int64_t>(results.size());
  if (pool != nullptr) {
    pool->each(num_pieces, piece);
  } else {
    for (int64_t i = 0; i < num_pieces; ++i) piece(i);
  }
  for (Result<void>& r : results) {
    if (!r) return r;
  }
  return {};
}

Result<void> check_scales(const WeightSpec& spec, std::span<const uint8_t> scales) {
  if (find_nan_scale(scales) < 0) return {};
  return fail(Code::kCorrupt, "tensor {} has scale byte 255 (not a number), allowed are 0..254", spec.scale_name());
}

std::string describe(StoredType type, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", stored_type_name(type), fmt::join(shape, ", "));
}

// The header's entry for one stored tensor, if it is as the configuration wants it.
Result<const TensorEntry*> match(const TensorFiles& files, const std::string& name, StoredType type,
                                 const std::vector<int64_t>& shape) {
  const TensorEntry* e = files.find(name);
  if (e == nullptr) return fail(Code::kNotFound, "tensor {} ({}) is missing", name, describe(type, shape));
  if (e->type != type || e->shape != shape) {
    return fail(Code::kCorrupt, "tensor {} is {}, the configuration wants {}", name, describe(e->type, e->shape),
                describe(type, shape));
  }
  return e;
}

}  // namespace

Result<void> Checkpoint::Shared::match_inventory() {
  specs = inventory(config);
  locations.resize(specs.size());
  by_name.reserve(specs.size());
  std::vector<bool> is_used(files.entries.size(), false);
  for (size_t i = 0; i < specs.size(); ++i) {
    const WeightSpec& s = specs[i];
    by_name.emplace(s.name, static_cast<int>(i));
    if (s.part == Part::kVision && files.find(s.name) == nullptr) continue;
    DI_TRY(locations[i].codes, match(files, s.name, s.stored_type(), s.stored_shape()));
    is_used[static_cast<size_t>(locations[i].codes - files.entries.data())] = true;
    if (s.part == Part::kVision) vision.push_back(s.name);
    if (!s.is_quantised()) continue;
    DI_TRY(locations[i].scales, match(files, s.scale_name(), StoredType::kE8M0, {s.scale_rows(), s.scale_cols()}));
    is_used[static_cast<size_t>(locations[i].scales - files.entries.data())] = true;
  }
  for (size_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) unknown.push_back(files.entries[i].name);
  }
  return {};
}

Result<void> Checkpoint::Shared::open_shards() {
  for (const std::string& path : files.paths) {
    DI_TRY(shards.emplace_back(), File::open_read(path));
    DI_TRY(mappings.emplace_back(), MappedFile::open(path));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorEntry* e = locations[i].codes;
    if (e == nullptr || e->offset % (stored_type_bits(e->type) / 8) == 0) continue;
    std::vector<std::byte>& copy = aligned[e];
    copy.resize(static_cast<size_t>(e->bytes));
    DI_TRY_VOID(shards[static_cast<size_t>(e->shard)].read_at(e->offset, copy));
  }
  // Engram rows are gathered one by one: reading ahead would fetch a hundred times what is used.
  const int64_t page = 4096;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].part != Part::kEngramTable) continue;
    const TensorEntry& e = *locations[i].codes;
    const std::byte* base = mappings[static_cast<size_t>(e.shard)].bytes().data();
    const int64_t begin = round_up(e.offset, page), end = round_down(e.offset + e.bytes, page);
    if (begin < end) ::madvise(const_cast<std::byte*>(base) + begin, static_cast<size_t>(end - begin), MADV_RANDOM);
  }
  return {};
}

const std::byte* Checkpoint::Shared::bytes(const TensorEntry& e) const {
  if (auto it = aligned.find(&e); it != aligned.end()) return it->second.data();
  const std::byte* base = mappings.empty() ? memory.data() : mappings[static_cast<size_t>(e.shard)].bytes().data();
  return base + e.offset;
}

Result<void> Checkpoint::Shared::read_at(const TensorEntry& e, int64_t offset, std::span<std::byte> out) const {
  if (!shards.empty()) return shards[static_cast<size_t>(e.shard)].read_at(e.offset + offset, out);
  std::memcpy(out.data(), bytes(e) + offset, out.size());
  return {};
}

Result<const WeightSpec*> Checkpoint::Shared::locate(std::string_view name, Location& where) const {
  auto it = by_name.find(name);
  if (it == by_name.end()) return fail(Code::kNotFound, "the model has no weight {}", name);
  where = locations[static_cast<size_t>(it->second)];
  if (where.codes == nullptr) return fail(Code::kNotFound, "tensor {} is not in the checkpoint", name);
  return &specs[static_cast<size_t>(it->second)];
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  auto shared = std::make_shared<Shared>();
  shared->directory = directory;
  DI_TRY(shared->config, load_config(directory));
  DI_TRY(shared->files, open_tensor_files(directory));
  if (auto r = shared->match_inventory(); !r) return fail(r.error().code, "{}: {}", directory, r.error().message);
  DI_TRY_VOID(shared->open_shards());
  return Checkpoint(std::move(shared));
}

Checkpoint::Checkpoint(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
Checkpoint::Checkpoint(Checkpoint&& other) noexcept
    : shared_(std::move(other.shared_)), delivered_bytes_(other.delivered_bytes_.load()) {}
Checkpoint::~Checkpoint() = default;
Checkpoint Checkpoint::for_rank() const {
  return Checkpoint(shared_);
}

const std::string& Checkpoint::directory() const {
  return shared_->directory;
}
const ModelConfig& Checkpoint::config() const {
  return shared_->config;
}
const std::vector<WeightSpec>& Checkpoint::specs() const {
  return shared_->specs;
}
const TensorFiles& Checkpoint::files() const {
  return shared_->files;
}
const std::vector<std::string>& Checkpoint::unknown_tensors() const {
  return shared_->unknown;
}
const std::vector<std::string>& Checkpoint::vision_tensors() const {
  return shared_->vision;
}

const WeightSpec* Checkpoint::find(std::string_view name) const {
  auto it = shared_->by_name.find(name);
  return it == shared_->by_name.end() ? nullptr : &shared_->specs[static_cast<size_t>(it->second)];
}

Result<WeightView> Checkpoint::map(std::string_view name) const {
  Shared::Location where;
  DI_TRY(const WeightSpec* spec, shared_->locate(name, where));
  return map(name, whole(*spec));
}

Result<WeightView> Checkpoint::map(std::string_view name, const Slice& slice) const {
  Shared::Location where;
  DI_TRY(const WeightSpec* spec, shared_->locate(name, where));
  DI_TRY_VOID(check_slice(*spec, slice));
  const ByteRect codes = code_rect(*spec, slice);
  WeightView view{.kind = spec->kind, .rows = slice.rows(), .cols = slice.cols()};
  view.codes = shared_->bytes(*where.codes) + codes.offset;
  view.code_stride = codes.stride;
  if (where.scales != nullptr) {
    const ByteRect scales = scale_rect(*spec, slice);
    view.scales = reinterpret_cast<const uint8_t*>(shared_->bytes(*where.scales) + scales.offset);
    view.scale_stride = scales.stride;
    view.scale_group_rows = static_cast<int>(scale_group_rows(spec->kind));
  }
  // One scale for 1,024 codes costs nothing to look at. Those of experts and Engram tables are a sixteenth of their
  // bytes: reading them here would make the start as long as the model is large, so only verify() does.
  if (spec->kind == Kind::kFp8) {
    const ByteRect scales = scale_rect(*spec, slice);
    const bool is_contiguous = scales.row_bytes == scales.stride;
    const int64_t run = is_contiguous ? scales.size() : scales.row_bytes;
    for (int64_t r = 0; r < (is_contiguous ? 1 : scales.rows); ++r) {
      DI_TRY_VOID(check_scales(*spec, {view.scales + r * scales.stride, static_cast<size_t>(run)}));
    }
  }
  const SliceBytes size = slice_bytes(*spec, slice);
  delivered_bytes_.fetch_add(size.codes + size.scales, std::memory_order_relaxed);
  return view;
}

Result<void> Checkpoint::read(std::string_view name, const Slice& slice, std::span<std::byte> codes,
                              std::span<uint8_t> scales, ThreadPool* pool) const {
  Shared::Location where;
  DI_TRY(const WeightSpec* spec, shared_->locate(name, where));
  DI_TRY_VOID(check_slice(*spec, slice));
  const SliceBytes size = slice_bytes(*spec, slice);
  if (static_cast<int64_t>(codes.size()) != size.codes || static_cast<int64_t>(scales.size()) != size.scales) {
    return fail(Code::kInvalid, "buffers of {} and {} bytes for a slice of {} that has {} and {}", codes.size(),
                scales.size(), name, size.codes, size.scales);
  }
  auto from = [&](const TensorEntry* e) {
    return [this, e](int64_t offset, std::span<std::byte> out) { return shared_->read_at(*e, offset, out); };
  };
  DI_TRY_VOID(read_rect(from(where.codes), code_rect(*spec, slice), codes.data(), pool));
  DI_TRY_VOID(read_rect(from(where.scales), scale_rect(*spec, slice), std::as_writable_bytes(scales).data(), pool));
  DI_TRY_VOID(check_scales(*spec, scales));
  delivered_bytes_.fetch_add(size.codes + size.scales, std::memory_order_relaxed);
  return {};
}

Result<void> Checkpoint::read_scales(std::string_view name, int64_t begin, int64_t end, std::span<uint8_t> out) const {
  Shared::Location where;
  DI_TRY(const WeightSpec* spec, shared_->locate(name, where));
  if (begin < 0 || begin > end || end > spec->scale_rows() ||
      static_cast<int64_t>(out.size()) != (end - begin) * spec->scale_cols()) {
    return fail(Code::kInvalid, "scale rows {}..{} of {} into {} bytes; it has {} rows of {}", begin, end, name,
                out.size(), spec->scale_rows(), spec->scale_cols());
  }
  if (out.empty()) return {};
  return shared_->read_at(*where.scales, begin * spec->scale_cols(), std::as_writable_bytes(out));
}

}  // namespace deepinfer::weights
