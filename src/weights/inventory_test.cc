// The tensor list of the released configuration reproduces the published totals.

#include "weights/inventory.h"

#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace deepinfer::weights {
namespace {

TEST(Inventory, ReleasedTotals) {
  auto t = totals(inventory(load_config(golden("released")).value()));
  EXPECT_EQ(t.num_tensors, 96085);
  EXPECT_EQ(t.num_bytes, 510286023000);
}

TEST(Inventory, ScaleShapes) {
  WeightSpec block{.name = "x.weight", .kind = Kind::kFp8, .rows = 64, .cols = 96};
  EXPECT_EQ(block.scale_rows(), 2);
  EXPECT_EQ(block.scale_cols(), 3);
  EXPECT_EQ(block.bytes(), 64 * 96 + 6);
  EXPECT_EQ(block.scale_name(), "x.scale");
  WeightSpec expert{.name = "x.weight", .kind = Kind::kFp4, .rows = 64, .cols = 96};
  EXPECT_EQ(expert.code_bytes(), 64 * 48);
  EXPECT_EQ(expert.scale_bytes(), 64 * 3);
}

}  // namespace
}  // namespace deepinfer::weights
