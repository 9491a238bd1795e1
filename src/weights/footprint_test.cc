// Bytes of the released model by place and by step.

#include "weights/footprint.h"

#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace deepinfer::weights {
namespace {

TEST(Footprint, ReleasedModel) {
  ModelConfig c = load_config(golden("released")).value();
  Footprint f = footprint(c);
  EXPECT_EQ(f.total(), 510286023000);
  EXPECT_EQ(f.engram_tables, (384006168 + 384016682) * int64_t{264});
  // 40 x 384 + 3 x 128 experts of 3 x 2304 x 5120 codes and scales.
  EXPECT_EQ(f.experts, (40 * 384 + 3 * 128) * int64_t{18800640});
}

TEST(Footprint, DecodeReadsWhatTheFormulasSay) {
  ModelConfig c = load_config(golden("released")).value();
  DecodeBytes d = decode_bytes(c, 1 << 20);
  EXPECT_EQ(d.experts, 40 * 6 * int64_t{18800640});
  EXPECT_EQ(d.engram, 2 * 24 * 264);
  // Windows; 512 entries in 38 layers; index keys: three sources of pairs, one of tokens, four of 16384 candidates.
  EXPECT_EQ(d.cache, 40 * 128 * 528 + 38 * 512 * 288 + 68 * (3 * (int64_t{1} << 19) + (int64_t{1} << 20) + 4 * 16384));
  EXPECT_LT(decode_bytes(c, 100).cache, decode_bytes(c, 1000).cache);
  EXPECT_GT(decode_flops(c), 2 * 40 * 6 * 35.3e6);
}

}  // namespace
}  // namespace deepinfer::weights
