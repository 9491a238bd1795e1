// The instruction sets of the CPU backend: against the reference, and against each other bit by bit.
// The parametrised tests of ops_test.cc run on the backend as well (threads, pieces, hostile input).
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/compare_ops.h"
#include "kernels/cpu/features.h"

namespace deepinfer::kernels::testing {
namespace {

using ::testing::IsEmpty;

const Shape kShapes[] = {{.rows = 0},
                         {.rows = 1},
                         {.rows = 31},
                         {.rows = 32},
                         {.rows = 33},
                         {.rows = 23, .data = Data::kRough},
                         {.rows = 14, .data = Data::kTies},
                         {.rows = 5, .hidden = 544, .streams = 3, .heads = 5, .head_dim = 96, .rope_pairs = 13},
                         {.rows = 70, .hidden = 96, .streams = 8, .heads = 20, .expert_width = 160},
                         Shape::smallest(),
                         Shape::uneven(),
                         Shape::wide_head()};

// Bits are equal on every instruction set: lanes, integer sums and fma are the same (simd.h).
TEST(CpuOps, InstructionSetsGiveEqualBits) {
  const auto tables = cpu::usable_tables();
  for (size_t i = 1; i < tables.size(); ++i) {
    CpuSide a(cpu::make_ops(*tables[0]), 2), b(cpu::make_ops(*tables[i]), 2);
    for (const Shape& shape : kShapes) EXPECT_THAT(repeat_problems(a.backend, b.backend, shape, 3), IsEmpty());
  }
}

double rms_difference(const Outputs& a, const Outputs& b) {
  double sum = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a[i].values.values.size(); ++k) {
      const double want = b[i].values.values[k], error = a[i].values.values[k] - want;
      sum += error * error;
      scale += want * want;
    }
  }
  return std::sqrt(sum / scale);
}

// `fast` rounds nothing but the caches and the inputs of the integer products. Elsewhere it gives what the reference's
// `qat` does, to fp32 accuracy. Products stay within 2 % of the largest in their row, and on plain data they are closer
// to it than `vendor`'s. Outliers cost int8 more than e4m3: there they may be worse than `vendor`'s by half.
TEST(CpuOps, FastIsCloserToUnroundedThanVendor) {
  CpuSide want(make_ref_ops(Numerics::kQat), 2), vendor(make_ref_ops(Numerics::kVendor), 2);
  for (const cpu::KernelTable* table : cpu::usable_tables()) {
    CpuSide got(cpu::make_ops(*table), 2);
    for (const Shape& shape : kShapes) {
      for (const OpCase& c : all_cases()) {
        const std::string name = c.name;
        const bool is_moe = name.starts_with("moe"), is_rough = shape.data == Data::kRough;
        const bool is_product = is_moe || name.starts_with("linear") || name.starts_with("grouped");
        const Piece whole{0, shape.rows};
        const Outputs a = c.run(got.backend, shape, 5, whole), b = c.run(want.backend, shape, 5, whole);
        auto tolerance = [&](const Output& o) {
          return is_product ? Tolerance{is_moe ? 0.05 : 0.02, 0} : tolerance_of(o.kind, Numerics::kQat, 1);
        };
        if (!is_moe || !is_rough) {
          EXPECT_THAT(compare_outputs(name, a, b, tolerance), IsEmpty())
              << table->name << ", " << shape.rows << " rows";
        }
        // No fp8 or fp4 product of the model takes its input as it is, but for wo_a (grouped_linear).
        if (!is_product || shape.rows == 0 || name == "linear, input as it is") continue;
        if (shape.data == Data::kTies) continue;  // values that e4m3 holds exactly
        const double vendor_error = rms_difference(c.run(vendor.backend, shape, 5, whole), b);
        EXPECT_LT(rms_difference(a, b), (is_rough ? 1.5 : 0.7) * vendor_error) << name << ", " << table->name;
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::kernels::testing
