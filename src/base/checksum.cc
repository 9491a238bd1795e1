#include "base/checksum.h"

#include <array>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace deepinfer {
namespace {

constexpr uint32_t kCastagnoli = 0x82f63b78u;  // bit-reversed 0x1edc6f41

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t v = i;
    for (int bit = 0; bit < 8; ++bit) v = (v >> 1) ^ ((v & 1) != 0 ? kCastagnoli : 0);
    table[i] = v;
  }
  return table;
}

uint32_t crc_portable(uint32_t crc, const std::byte* p, size_t n) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  for (size_t i = 0; i < n; ++i) crc = kTable[(crc ^ static_cast<uint32_t>(p[i])) & 0xff] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc_sse42(uint32_t crc, const std::byte* p, size_t n) {
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*p));
  return crc;
}
#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~crc_sse42(~0u, bytes.data(), bytes.size());
#endif
  return ~crc_portable(~0u, bytes.data(), bytes.size());
}

uint64_t xxh64(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

}  // namespace deepinfer
