// Digests: SHA-256 for names that leave the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace deepinfer {

using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::span<const std::byte> bytes);
std::string hex(std::span<const uint8_t> bytes);

// Many digests with one context: begin, add the pieces, end; then begin again. One thread.
class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(Sha256Hasher&&) noexcept;
  Sha256Hasher& operator=(Sha256Hasher&&) noexcept;

  void begin();
  void add(std::span<const std::byte> bytes);
  Sha256 end();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace deepinfer
