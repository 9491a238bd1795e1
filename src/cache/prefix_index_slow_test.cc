// A million random operations of the prefix index against a naive map.
#include <gtest/gtest.h>

#include "cache/testing/random_operations.h"

namespace deepinfer::cache {
namespace {

TEST(PrefixIndexSlow, EqualsANaiveMapUnderAMillionRandomOperations) {
  testing::run_random_operations({.seed = 11, .num_operations = 700000, .num_blocks = 90, .name_bits = 128});
  testing::run_random_operations({.seed = 12, .num_operations = 200000, .num_blocks = 25, .name_bits = 128});
  testing::run_random_operations({.seed = 13, .num_operations = 100000, .num_blocks = 90, .name_bits = 16});
}

}  // namespace
}  // namespace deepinfer::cache
