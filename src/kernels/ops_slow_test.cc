// The comparisons of ops_test.cc at the widths of the released model: long sums, 64 heads, 512 chosen of 3,000 entries.
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/compare_ops.h"

namespace deepinfer::kernels::testing {
namespace {

using ::testing::IsEmpty;

class ReleasedWidths : public ::testing::TestWithParam<const char*> {};

TEST_P(ReleasedWidths, EqualReferenceAndDoNotDependOnTheBatch) {
  const Shape shape = Shape::released(5);
  for (const TestBackend& which : cpu_backends()) {
    if (which.name != std::string_view(GetParam())) continue;
    CpuStream stream(2);
    const std::unique_ptr<Ops> ops = which.make(Numerics::kVendor), reference = make_ref_ops(Numerics::kVendor);
    const Backend got{.ops = ops.get(), .stream = &stream, .threads = 2};
    const Backend want{.ops = reference.get(), .stream = &stream, .threads = 2};
    EXPECT_THAT(compare_ops(got, want, shape, 31), IsEmpty());
    EXPECT_THAT(piece_problems(got, shape, 31, 2), IsEmpty());
  }
}

std::vector<const char*> backend_names() {
  std::vector<const char*> names;
  for (const TestBackend& backend : cpu_backends()) names.push_back(backend.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, ReleasedWidths, ::testing::ValuesIn(backend_names()),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace deepinfer::kernels::testing
