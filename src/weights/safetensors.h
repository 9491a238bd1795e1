// Reads safetensors files: headers into tensor entries, checked; payloads stay on disk.
//
//   file = u64 header length | header JSON | payload
//   header = {"name": {"dtype": "BF16", "shape": [r, c], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
//
//   The offsets cover the payload without holes or overlaps. A directory holds either model.safetensors or shards named
//   by model.safetensors.index.json. A `model.` prefix of a name is dropped.
//
// Everything here is untrusted: no length, count or nesting depth is believed before it is compared with the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace deepinfer::weights {

enum class StoredType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kE5M2,
  kE4M3,
  kE8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
const char* stored_type_name(StoredType type);  // as in the header: "F8_E4M3"
int stored_type_bits(StoredType type);

struct TensorEntry {
  std::string name;  // without a `model.` prefix
  StoredType type = StoredType::kU8;
  std::vector<int64_t> shape;
  int shard = 0;
  int64_t offset = 0;  // of the first byte in the shard's file
  int64_t bytes = 0;
};

// Entries of one header. `payload_begin` is the file offset of the payload, `payload_bytes` what the file has of it.
// kCorrupt: not a header, offsets outside or overlapping, size not that of dtype and shape, a name given twice.
Result<std::vector<TensorEntry>> parse_header(std::string_view header, int64_t payload_begin, int64_t payload_bytes);

// Reads and parses the header of one file.
Result<std::vector<TensorEntry>> read_header(const File& file);

// All tensors of a checkpoint directory (or of one .safetensors file given by path).
struct TensorFiles {
  TensorFiles() = default;
  TensorFiles(TensorFiles&&) = default;
  TensorFiles& operator=(TensorFiles&&) = default;

  std::vector<std::string> paths;  // one a shard, in order of first mention
  std::vector<TensorEntry> entries;
  std::vector<std::string> unlisted;  // in a shard but not in the index

  const TensorEntry* find(std::string_view name) const;

  std::unordered_map<std::string_view, int> by_name;  // into `entries`, which must not be changed any more
};
Result<TensorFiles> open_tensor_files(const std::string& path);

// Header bytes (length word included, padded to 8) for entries whose `offset` is relative to the payload.
std::string make_header(const std::vector<TensorEntry>& entries);

}  // namespace deepinfer::weights
