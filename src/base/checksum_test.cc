#include "base/checksum.h"

#include <string_view>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Checksum, KnownValues) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes("123456789")), 0xe3069283u);  // the check value of CRC-32/ISCSI
  EXPECT_EQ(xxh64({}), 0xef46db3751d8e999ull);
  EXPECT_EQ(xxh64(bytes("abc")), 0x44bc2cf5ad770999ull);
}

}  // namespace
}  // namespace deepinfer
