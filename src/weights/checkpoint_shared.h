// What the handles of one checkpoint share. Private to checkpoint*.cc.
#pragma once

#include <span>
#include <unordered_map>

#include <sys/mman.h>

#include "weights/checkpoint.h"

namespace deepinfer::weights {

// Anonymous memory for generated weights.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Result<std::byte*> allocate(int64_t size) {
    void* p = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return fail(Code::kExhausted, "no memory for {} bytes of random weights", size);
    data_ = p;
    size_ = static_cast<size_t>(size);
    return static_cast<std::byte*>(p);
  }
  const std::byte* data() const { return static_cast<const std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

struct Checkpoint::Shared {
  std::string directory;  // empty: generated in `memory`, where entry offsets point, with no shards
  ModelConfig config;
  TensorFiles files;
  std::vector<File> shards;
  std::vector<MappedFile> mappings;
  Memory memory;
  std::vector<WeightSpec> specs;
  struct Location {
    const TensorEntry* codes = nullptr;
    const TensorEntry* scales = nullptr;
  };
  std::vector<Location> locations;                    // beside specs; empty for absent vision tensors
  std::unordered_map<std::string_view, int> by_name;  // into specs
  std::vector<std::string> unknown, vision;
  // Values that do not lie on a multiple of their size in the file, copied to where they do.
  std::unordered_map<const TensorEntry*, std::vector<std::byte>> aligned;

  Result<void> match_inventory();
  Result<void> fill_random(uint64_t seed, ThreadPool& pool);
  const std::byte* bytes(const TensorEntry& e) const;
  Result<void> read_at(const TensorEntry& e, int64_t offset, std::span<std::byte> out) const;
  Result<void> open_shards();
  Result<const WeightSpec*> locate(std::string_view name, Location& where) const;
};

}  // namespace deepinfer::weights
