// Checksums of stored and moved bytes: CRC32C for parts, xxHash for wholes. Neither withstands an attacker (base/hash.h
// does).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer {

uint32_t crc32c(std::span<const std::byte> bytes);  // Castagnoli polynomial, by instruction where the CPU has it
uint64_t xxh64(std::span<const std::byte> bytes);   // seed 0

}  // namespace deepinfer
