// The CPU backend at the widths of the released model: long sums, 64 heads, 512 chosen of 3,000 entries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/compare_ops.h"
#include "kernels/cpu/features.h"

namespace deepinfer::kernels::testing {
namespace {

using ::testing::IsEmpty;

// Within what int8 and int16 activations cost, 2 % of the largest value of a row, whatever the batch; and every
// instruction set gives the same bits.
TEST(ReleasedWidths, AreNearTheReferenceAndDoNotDependOnTheBatch) {
  const Shape shape = Shape::released(5);
  const auto tables = cpu::usable_tables();
  if (tables.empty()) GTEST_SKIP() << "a processor without AVX2";
  CpuSide best(cpu::make_ops(*tables.front()), 2), reference(make_ref_ops(Numerics::kQat), 2);
  EXPECT_THAT(compare_ops(best.backend, reference.backend, shape, 31, 1000), IsEmpty());
  for (const cpu::KernelTable* table : tables) {
    CpuSide side(cpu::make_ops(*table), 2);
    EXPECT_THAT(piece_problems(side.backend, shape, 31, 2), IsEmpty()) << table->name;
    EXPECT_THAT(repeat_problems(side.backend, best.backend, shape, 31), IsEmpty()) << table->name;
  }
}

}  // namespace
}  // namespace deepinfer::kernels::testing
