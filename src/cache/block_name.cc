#include "cache/block_name.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace deepinfer::cache {
namespace {

// Tagged, length-prefixed fields of what is hashed.
class Fields {
 public:
  explicit Fields(std::string_view kind) { add('K', kind); }
  Fields& add(char tag, std::string_view value) {
    number(tag, static_cast<int64_t>(value.size()));
    bytes_ += value;
    return *this;
  }
  Fields& number(char tag, int64_t value) {
    bytes_ += tag;
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);  // little-endian hosts only, as the packed form
    bytes_.append(raw, sizeof raw);
    return *this;
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

std::string_view text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Digest namespace_digest(const NamespaceFields& f) {
  Fields fields("ns1");
  fields.add('m', f.model_digest).number('w', static_cast<int64_t>(f.weight_version)).add('f', f.kv_format);
  fields.add('t', f.tokenizer_digest).add('a', f.adapter);
  Sha256 digest = sha256(fields.bytes());
  Digest out;
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

BlockNamer::BlockNamer(std::string_view cluster_key, const Digest& name_space, int name_bits)
    : key_(cluster_key), name_space_(name_space), name_bits_(name_bits) {
  DI_CHECK(name_bits >= 8 && name_bits <= 128, "names of {} bits", name_bits);
}

Digest BlockNamer::truncated(const Sha256& digest) const {
  Digest out{};
  std::copy_n(digest.begin(), (name_bits_ + 7) / 8, out.begin());
  return out;
}

Digest BlockNamer::root(std::string_view salt) const {
  Fields fields("root1");
  fields.add('k', key_).add('n', text_of(name_space_)).add('s', salt);
  Digest out;
  Sha256 digest = sha256(fields.bytes());
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

Digest BlockNamer::next(const Digest& predecessor, std::span<const int32_t> ids, std::span<const ImagePiece> images) {
  DI_CHECK(ids.size() == kBlockPositions, "a block of {} ids", ids.size());
  // Fixed-size fields need no lengths: tag, predecessor, ids. 532 bytes are 9 rounds of SHA-256.
  hasher_.begin();
  hasher_.add(std::as_bytes(std::span("blk1", 4)));
  hasher_.add(std::as_bytes(std::span(predecessor)));
  hasher_.add(std::as_bytes(ids));
  for (const ImagePiece& image : images) {
    Fields fields("img1");
    fields.add('d', text_of(image.digest)).number('b', image.begin).number('e', image.end).number('o', image.offset);
    hasher_.add(fields.bytes());
  }
  return truncated(hasher_.end());
}

}  // namespace deepinfer::cache
