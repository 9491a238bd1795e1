// Names of blocks: a block is known by its content and everything before it.
//
//   root     H("root1" | key | namespace | salt)                        keyed: no client can compute a name beforehand
//   name(0)  H("blk1"  | root | ids[128] | images)
//   name(i)  H("blk1"  | name(i-1) | ids[128] | images)                 first 128 bits kept
//
// H is SHA-256; every field is tagged and length-prefixed, so that no two fields can run together. Equal names are
// candidates only: ids are compared before use (prefix_index.h). The namespace is a digest over all that makes rows
// incompatible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "cache/packed.h"

namespace deepinfer::cache {

// Everything that makes cached rows of one engine unusable to another.
struct NamespaceFields {
  std::string model_digest;  // configuration and weight index
  uint64_t weight_version = 0;
  std::string kv_format;         // and row layout version
  std::string tokenizer_digest;  // and compressed-vocabulary map
  std::string adapter;
};
Digest namespace_digest(const NamespaceFields& fields);

// A run of an image inside one block. The digest is over the pixels after preprocessing and the preprocessing version.
struct ImagePiece {
  Sha256 digest{};
  int32_t begin = 0, end = 0;  // positions within the block
  int64_t offset = 0;          // of `begin` within the image's tokens
  bool operator==(const ImagePiece&) const = default;
};

class BlockNamer {
 public:
  // `name_bits` below 128 truncates names so that collisions can be forced in tests.
  BlockNamer(std::string_view cluster_key, const Digest& name_space, int name_bits = 128);

  // The predecessor of a chain's first block; `salt` is the tenant's secret, an explicit one, or that of a public
  // scope.
  Digest root(std::string_view salt) const;
  // `ids` are the 128 ids of the block.
  Digest next(const Digest& predecessor, std::span<const int32_t> ids, std::span<const ImagePiece> images = {});

 private:
  Digest truncated(const Sha256& digest) const;

  std::string key_;
  Digest name_space_;
  int name_bits_;
  Sha256Hasher hasher_;
};

}  // namespace deepinfer::cache
