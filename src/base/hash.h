// Digests: SHA-256 for names that leave the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace deepinfer {

using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::span<const std::byte> bytes);
std::string hex(std::span<const uint8_t> bytes);

}  // namespace deepinfer
