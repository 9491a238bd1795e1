#include "cache/packed.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checksum.h"

namespace deepinfer::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "the layout is written as it lies in memory");

constexpr uint64_t kMagic = 0x314b434150494400ull;  // "\0DIPACK1"
constexpr uint32_t kVersion = 1;
// magic, version, kind + provenance + format + 0, three digests, end, count, ids, marks, two floors, component count
constexpr int64_t kFixedBytes = 8 + 4 + 4 + 3 * 16 + 8 + 4 + 4 * kBlockPositions + kBlockPositions / 8 + 16 + 4;
constexpr int64_t kEntryBytes = 2 + 2 + 4 + 8;  // kind, layer, CRC32C, bytes
constexpr int64_t kCrcBytes = 4, kTrailerBytes = 8;
constexpr uint32_t kMaxComponents = 1024;  // 8 rows of sources and 43 windows in the released model

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  void put(const T& value) {
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

 private:
  const std::byte* at_;
};

int64_t table_end(size_t num_components) {
  return kFixedBytes + static_cast<int64_t>(num_components) * kEntryBytes;
}

Result<void> check_header(const PackedHeader& h) {
  if (h.num_ids < 0 || h.num_ids > kBlockPositions || h.end_pos < 0)
    return fail(Code::kCorrupt, "packed: {} ids before position {}", h.num_ids, h.end_pos);
  if (h.kind == PackedKind::kBlock && (h.num_ids == 0 || (h.end_pos - h.num_ids) % kBlockPositions != 0))
    return fail(Code::kCorrupt, "packed: a block of {} ids cannot end at position {}", h.num_ids, h.end_pos);
  if (h.producer_floor < 0 || h.consumer_floor < 0) return fail(Code::kCorrupt, "packed: negative window floor");
  return {};
}

}  // namespace

PackedBuilder::PackedBuilder(const PackedHeader& h, std::span<const ComponentSpec> specs)
    : specs_(specs.begin(), specs.end()) {
  int64_t at = table_end(specs.size()) + kCrcBytes;
  for (const ComponentSpec& s : specs) {
    offsets_.push_back(at);
    at += s.bytes;
  }
  bytes_.resize(static_cast<size_t>(at + kTrailerBytes));
  Writer w(bytes_.data());
  w.put(kMagic);
  w.put(kVersion);
  w.put(h.kind);
  w.put(h.provenance);
  w.put(h.format);
  w.put(uint8_t{0});
  w.put(h.name_space);
  w.put(h.name);
  w.put(h.predecessor);
  w.put(h.end_pos);
  w.put(h.num_ids);
  w.put(h.ids);
  w.put(h.image_marks);
  w.put(h.producer_floor);
  w.put(h.consumer_floor);
  w.put(static_cast<uint32_t>(specs.size()));
}

std::vector<std::byte> PackedBuilder::seal() && {
  Writer w(bytes_.data() + kFixedBytes);
  for (size_t i = 0; i < specs_.size(); ++i) {
    w.put(specs_[i].kind);
    w.put(static_cast<uint16_t>(specs_[i].layer));
    w.put(crc32c({component(i), static_cast<size_t>(specs_[i].bytes)}));
    w.put(specs_[i].bytes);
  }
  w.put(crc32c({bytes_.data(), static_cast<size_t>(table_end(specs_.size()))}));
  size_t body = bytes_.size() - kTrailerBytes;
  Writer(bytes_.data() + body).put(xxh64({bytes_.data(), body}));
  return std::move(bytes_);
}

Result<std::span<const std::byte>> PackedView::component(ComponentKind kind, int32_t layer, int64_t bytes) const {
  for (const PackedComponent& c : components) {
    if (c.kind != kind || c.layer != layer) continue;
    if (static_cast<int64_t>(c.bytes.size()) != bytes)
      return fail(Code::kCorrupt, "packed: component {} of layer {} has {} bytes, {} expected", static_cast<int>(kind),
                  layer, c.bytes.size(), bytes);
    return c.bytes;
  }
  return fail(Code::kCorrupt, "packed: component {} of layer {} is missing", static_cast<int>(kind), layer);
}

Result<PackedView> parse_packed(std::span<const std::byte> bytes) {
  auto size = static_cast<int64_t>(bytes.size());
  if (size < table_end(0) + kCrcBytes + kTrailerBytes)
    return fail(Code::kCorrupt, "packed: {} bytes are too few", size);
  Reader r(bytes.data());
  if (auto magic = r.get<uint64_t>(); magic != kMagic) return fail(Code::kCorrupt, "packed: magic {:x}", magic);
  if (auto version = r.get<uint32_t>(); version != kVersion)
    return fail(Code::kUnsupported, "packed: version {}, {} is read", version, kVersion);
  auto kind = r.get<uint8_t>(), provenance = r.get<uint8_t>(), format = r.get<uint8_t>(), zero = r.get<uint8_t>();
  if (kind < 1 || kind > 2 || provenance > 1 || format > 1 || zero != 0)
    return fail(Code::kCorrupt, "packed: kind {}, provenance {}, format {}, reserved {}", kind, provenance, format,
                zero);
  PackedView view;
  PackedHeader& h = view.header;
  h.kind = static_cast<PackedKind>(kind);
  h.provenance = static_cast<Provenance>(provenance);
  h.format = static_cast<kernels::RecordFormat>(format);
  h.name_space = r.get<Digest>();
  h.name = r.get<Digest>();
  h.predecessor = r.get<Digest>();
  h.end_pos = r.get<int64_t>();
  h.num_ids = r.get<int32_t>();
  h.ids = r.get<decltype(h.ids)>();
  h.image_marks = r.get<decltype(h.image_marks)>();
  h.producer_floor = r.get<int64_t>();
  h.consumer_floor = r.get<int64_t>();
  auto count = r.get<uint32_t>();
  DI_TRY_VOID(check_header(h));
  int64_t at = table_end(count) + kCrcBytes;
  if (count > kMaxComponents || at + kTrailerBytes > size) return fail(Code::kCorrupt, "packed: {} components", count);
  uint32_t header_crc = crc32c(bytes.first(static_cast<size_t>(table_end(count))));
  if (Reader(bytes.data() + table_end(count)).get<uint32_t>() != header_crc)
    return fail(Code::kCorrupt, "packed: header checksum differs");
  for (uint32_t i = 0; i < count; ++i) {
    auto component_kind = r.get<uint16_t>(), layer = r.get<uint16_t>();
    auto crc = r.get<uint32_t>();
    auto length = r.get<int64_t>();
    if (component_kind < 1 || component_kind > 4 || length < 0 || length > size - kTrailerBytes - at)
      return fail(Code::kCorrupt, "packed: component {} has kind {} and {} bytes", i, component_kind, length);
    auto part = bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(length));
    if (crc32c(part) != crc) return fail(Code::kCorrupt, "packed: checksum of component {} differs", i);
    view.components.push_back({static_cast<ComponentKind>(component_kind), layer, part});
    at += length;
  }
  if (at + kTrailerBytes != size)
    return fail(Code::kCorrupt, "packed: {} bytes, {} described", size, at + kTrailerBytes);
  if (Reader(bytes.data() + at).get<uint64_t>() != xxh64(bytes.first(static_cast<size_t>(at))))
    return fail(Code::kCorrupt, "packed: checksum of the whole differs");
  return view;
}

}  // namespace deepinfer::cache
