#include "base/hash.h"

#include <fmt/format.h>
#include <openssl/sha.h>

namespace deepinfer {

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 out;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), out.data());
  return out;
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (uint8_t b : bytes) out += fmt::format("{:02x}", b);
  return out;
}

}  // namespace deepinfer
