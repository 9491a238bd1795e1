// The CPU backend at the widths of the released model: long sums, 64 heads, 512 chosen of 3,000 entries.
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/compare_ops.h"

namespace deepinfer::kernels::testing {
namespace {

using ::testing::IsEmpty;

class ReleasedWidths : public ::testing::TestWithParam<const char*> {};

// Within what int8 and int16 activations cost: 2 % of the largest value of a row.
TEST_P(ReleasedWidths, AreNearTheReferenceAndDoNotDependOnTheBatch) {
  const Shape shape = Shape::released(5);
  for (const TestBackend& which : cpu_backends()) {
    if (which.name != std::string_view(GetParam())) continue;
    CpuStream stream(2);
    const std::unique_ptr<Ops> ops = which.make(Numerics::kFast), reference = make_ref_ops(Numerics::kQat);
    const Backend got{.ops = ops.get(), .stream = &stream, .threads = 2};
    const Backend want{.ops = reference.get(), .stream = &stream, .threads = 2};
    EXPECT_THAT(compare_ops(got, want, shape, 31, 1000), IsEmpty());
    EXPECT_THAT(piece_problems(got, shape, 31, 2), IsEmpty());
  }
}

std::vector<const char*> backend_names() {
  std::vector<const char*> names;
  for (const TestBackend& backend : cpu_backends()) {
    if (backend.numerics.front() == Numerics::kFast) names.push_back(backend.name);
  }
  return names;
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReleasedWidths);  // a processor without AVX2
INSTANTIATE_TEST_SUITE_P(All, ReleasedWidths, ::testing::ValuesIn(backend_names()),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace deepinfer::kernels::testing
