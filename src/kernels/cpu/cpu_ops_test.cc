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

struct CpuSide {
  CpuStream stream;
  std::unique_ptr<Ops> ops;
  Backend backend;

  CpuSide(std::unique_ptr<Ops> o, int threads) : stream(threads), ops(std::move(o)) {
    backend = {.ops = ops.get(), .stream = &stream, .threads = threads};
  }
};

const Shape kShapes[] = {{.rows = 1},
                         {.rows = 23},
                         {.rows = 23, .data = Data::kRough},
                         {.rows = 5, .hidden = 544, .streams = 3, .heads = 5, .head_dim = 96, .rope_pairs = 13},
                         {.rows = 70, .hidden = 96, .streams = 8, .heads = 20, .expert_width = 160}};

// Bits are equal on every instruction set: lanes, integer sums and fma are the same (simd.h).
TEST(CpuOps, InstructionSetsGiveEqualBits) {
  const auto tables = cpu::usable_tables();
  for (size_t i = 1; i < tables.size(); ++i) {
    for (Numerics n : {Numerics::kVendor, Numerics::kFast}) {
      CpuSide a(cpu::make_ops(n, *tables[0]), 2), b(cpu::make_ops(n, *tables[i]), 2);
      for (const Shape& shape : kShapes) EXPECT_THAT(repeat_problems(a.backend, b.backend, shape, 3), IsEmpty());
    }
  }
}

TEST(CpuOps, VendorEqualsReference) {
  for (const cpu::KernelTable* table : cpu::usable_tables()) {
    CpuSide got(cpu::make_ops(Numerics::kVendor, *table), 2), want(make_ref_ops(Numerics::kVendor), 2);
    for (const Shape& shape : kShapes)
      EXPECT_THAT(compare_ops(got.backend, want.backend, shape, 5), IsEmpty()) << table->name;
  }
}

// Rows do not depend on their neighbours, the cut into chunks or the number of threads.
TEST(CpuOps, FastIsBatchInvariant) {
  for (const cpu::KernelTable* table : cpu::usable_tables()) {
    CpuSide one(cpu::make_ops(Numerics::kFast, *table), 1), two(cpu::make_ops(Numerics::kFast, *table), 2),
        five(cpu::make_ops(Numerics::kFast, *table), 5);
    for (int64_t rows : {1, 9, 33}) {
      EXPECT_THAT(repeat_problems(two.backend, one.backend, {.rows = rows}, 11), IsEmpty());
      EXPECT_THAT(repeat_problems(five.backend, one.backend, {.rows = rows}, 11), IsEmpty());
    }
    EXPECT_THAT(piece_problems(two.backend, {.rows = 37}, 21, 1), IsEmpty());
    for (int64_t chunk : {2, 3, 16})
      EXPECT_THAT(piece_problems(two.backend, {.rows = 37, .data = Data::kRough}, 21, chunk), IsEmpty());
    for (const OpCase& c : all_cases())
      c.run(two.backend, {.rows = 12, .data = Data::kNaN}, 1, {0, 12});  // guard pages
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
// `qat` does, to fp32 accuracy; products must be closer to it than `vendor`'s.
TEST(CpuOps, FastIsCloserToUnroundedThanVendor) {
  for (const cpu::KernelTable* table : cpu::usable_tables()) {
    CpuSide got(cpu::make_ops(Numerics::kFast, *table), 2), want(make_ref_ops(Numerics::kQat), 2);
    CpuSide vendor(cpu::make_ops(Numerics::kVendor, *table), 2);
    for (const Shape& shape : kShapes) {
      if (shape.data == Data::kRough) continue;
      for (const OpCase& c : all_cases()) {
        const std::string name = c.name;
        // No fp8 or fp4 product of the model takes its input as it is, but for wo_a (grouped_linear).
        if (name == "linear, input as it is") continue;
        const bool is_product = name.starts_with("linear") || name.starts_with("grouped") || name.starts_with("moe");
        const Piece whole{0, shape.rows};
        const Outputs a = c.run(got.backend, shape, 5, whole), b = c.run(want.backend, shape, 5, whole);
        if (is_product) {
          const double fast_error = rms_difference(a, b);
          const double vendor_error = rms_difference(c.run(vendor.backend, shape, 5, whole), b);
          EXPECT_LT(fast_error, 0.7 * vendor_error) << name << ", " << table->name;
        } else {
          auto tolerance = [](const Output& o) { return tolerance_of(o.kind, Numerics::kQat, 1); };
          EXPECT_THAT(compare_outputs(name, a, b, tolerance), IsEmpty()) << table->name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::kernels::testing
