// The canonical byte layout of a block of global KV, and of a private state (serving.md 4.1): what tiers store and
// workers exchange. It does not depend on ranks, ring lengths or page sizes; conversion happens where it is made and
// read.
//
//   header      magic, version, kind, provenance, format | namespace, name, predecessor (16 B each) | end position
//               | ids and image marks of the positions | floors | component table | CRC32C of all this
//   components  in table order, each with its own CRC32C, so that one can be fetched and checked alone
//   trailer     xxHash64 of everything before it
//   Little-endian, no padding.
//
// Block: positions [end - num_ids, end) start at a multiple of 128; fewer than 128 only for the last block of a saved
// sequence. State: what a sequence whose committed positions are [0, end) carries besides its blocks; the ids are its
// n-gram context (compressed ids, oldest first).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"

namespace deepinfer::cache {

inline constexpr int kBlockPositions = 128;

using Digest = std::array<uint8_t, 16>;

enum class PackedKind : uint8_t { kBlock = 1, kState = 2 };
// kExact: the windows that made the rows were those of a cold run, and so for all blocks before; kReplayed: all else.
enum class Provenance : uint8_t { kExact = 0, kReplayed = 1 };

struct PackedHeader {
  PackedKind kind = PackedKind::kBlock;
  Provenance provenance = Provenance::kExact;
  kernels::RecordFormat format = kernels::RecordFormat::kPacked;
  Digest name_space{}, name{}, predecessor{};
  int64_t end_pos = 0;
  int32_t num_ids = 0;
  std::array<int32_t, kBlockPositions> ids{};
  std::array<uint8_t, kBlockPositions / 8> image_marks{};  // bit i: position i of the block lies in an image span
  int64_t producer_floor = 0, consumer_floor = 0;          // states: no window key below it, by half

  bool operator==(const PackedHeader&) const = default;
};

enum class ComponentKind : uint16_t { kMain = 1, kIndex = 2, kWindow = 3, kTail = 4 };

struct ComponentSpec {
  ComponentKind kind = ComponentKind::kMain;
  int32_t layer = 0;  // draft stage s is num_hidden_layers + s
  int64_t bytes = 0;
};

// Writes header and table, and leaves the components zero; fill them, then seal.
class PackedBuilder {
 public:
  PackedBuilder(const PackedHeader& header, std::span<const ComponentSpec> specs);

  std::byte* component(size_t i) { return bytes_.data() + offsets_[i]; }
  std::vector<std::byte> seal() &&;  // adds the checksums

 private:
  std::vector<std::byte> bytes_;
  std::vector<ComponentSpec> specs_;
  std::vector<int64_t> offsets_;
};

struct PackedComponent {
  ComponentKind kind = ComponentKind::kMain;
  int32_t layer = 0;
  std::span<const std::byte> bytes;  // inside the buffer that was parsed
};

struct PackedView {
  PackedHeader header;
  std::vector<PackedComponent> components;

  // The bytes of a component, or kCorrupt unless it is there with exactly `bytes` bytes.
  Result<std::span<const std::byte>> component(ComponentKind kind, int32_t layer, int64_t bytes) const;
};

// Reads and verifies every byte; kCorrupt says what does not fit. Safe on any input.
Result<PackedView> parse_packed(std::span<const std::byte> bytes);

}  // namespace deepinfer::cache
