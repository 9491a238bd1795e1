// Pieces of several tokens that occurred before in the same text: their ids are copied instead of merged again.
//
// An entry points at the earlier piece and at its ids in the output, so nothing is stored twice; a later piece of the
// same slot replaces it. Made for one call: the text must stay, and ids may only be appended.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace deepinfer::text {

class PieceMemory {
 public:
  // Appends the ids of an equal earlier piece; false if there is none.
  bool recall(std::string_view piece, uint64_t hash, std::vector<int32_t>& ids) const {
    if (slots_.empty()) return false;
    const Slot& s = slots_[hash % kNumSlots];
    if (s.size != piece.size() || std::memcmp(s.begin, piece.data(), s.size) != 0) return false;
    for (std::size_t i = 0; i < s.num_ids; ++i) ids.push_back(ids[s.first_id + i]);
    return true;
  }

  // Remembers that `piece` gave the ids from `first` to the end.
  void store(std::string_view piece, uint64_t hash, std::size_t first, const std::vector<int32_t>& ids) {
    if (piece.size() > kMaxBytes || first < kMinIds) return;
    if (slots_.empty()) slots_.resize(kNumSlots);
    slots_[hash % kNumSlots] = {.begin = piece.data(),
                                .first_id = first,
                                .size = static_cast<uint32_t>(piece.size()),
                                .num_ids = static_cast<uint32_t>(ids.size() - first)};
  }

 private:
  // 8,192 slots of 24 bytes: stays in a second-level cache. Long pieces hardly ever come twice.
  static constexpr std::size_t kNumSlots = 8192, kMaxBytes = 64;
  // A short text is not worth the slots.
  static constexpr std::size_t kMinIds = 2048;
  struct Slot {
    const char* begin = nullptr;
    std::size_t first_id = 0;
    uint32_t size = 0, num_ids = 0;
  };
  std::vector<Slot> slots_;
};

}  // namespace deepinfer::text
