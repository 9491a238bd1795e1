// The CUDA backend against the reference, and against itself with other batches. Needs a GPU: ./build.sh gpu-test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/compare_ops.h"

namespace deepinfer::kernels::testing {
namespace {

using ::testing::IsEmpty;

// The CUDA backend with a device and a stream of its own. Without a GPU the test fails: it must not look passed.
struct CudaSide {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Ops> ops;
  Backend backend;

  explicit CudaSide(Numerics numerics) {
    auto found = make_cuda_device();
    DI_CHECK(found.has_value(), "{}", found.error().message);
    device = std::move(*found);
    stream = device->create_stream(2);
    ops = make_cuda_ops(numerics);
    backend = {.ops = ops.get(), .stream = stream.get(), .device = device.get(), .threads = 2};
  }
};
CpuSide reference_side() {
  return {make_ref_ops(Numerics::kVendor), 8};
}

const Shape kOther[] = {[] {
                          Shape s = Shape::smallest();
                          s.streams = Shape{}.streams;
                          return s;
                        }(),
                        {.rows = 5, .hidden = 544, .heads = 5, .head_dim = 96, .rope_pairs = 13},
                        Shape::uneven(),
                        Shape::wide_head(),
                        {.rows = 300, .hidden = 2080, .experts = 3, .expert_width = 352, .context = 400},
                        {.rows = 300, .hidden = 1152, .experts = 3, .expert_width = 384, .context = 400}};

// Sums of a few products are fp32 here and double in the reference, so a stream may take the next bf16 value: mixes
// move by a little more than a sum in another order.
constexpr double kSlack = 1.5;

// The comparison of compare_ops. Under `fast` attention may round its probabilities elsewhere than the reference.
std::vector<std::string> differences(const Backend& got, const Backend& want, const Shape& shape, uint64_t seed) {
  std::vector<std::string> problems;
  for (const OpCase& c : all_cases()) {
    const Piece whole{0, shape.rows};
    const bool rounds_elsewhere =
        got.ops->numerics() == Numerics::kFast && std::string_view(c.name).starts_with("attention");
    append(problems, compare_outputs(c.name, c.run(got, shape, seed, whole), c.run(want, shape, seed, whole),
                                     [&](const Output& o) {
                                       Tolerance t = tolerance_of(o.kind, Numerics::kVendor, kSlack);
                                       if (rounds_elsewhere) t.equal_fraction = 0.4;
                                       return t;
                                     }));
  }
  return problems;
}

class CudaOps : public ::testing::TestWithParam<Numerics> {};

TEST_P(CudaOps, EqualsReference) {
  CudaSide got(GetParam());
  CpuSide want = reference_side();
  for (int64_t rows : {0, 1, 5, 8, 9, 17, 31, 64, 65, 130}) {
    EXPECT_THAT(differences(got.backend, want.backend, {.rows = rows}, 100 + static_cast<uint64_t>(rows)), IsEmpty());
  }
}

TEST_P(CudaOps, EqualsReferenceOnRoughData) {
  CudaSide got(GetParam());
  CpuSide want = reference_side();
  for (Data data : {Data::kRough, Data::kTies}) {
    for (uint64_t seed : {1, 2, 3})
      EXPECT_THAT(differences(got.backend, want.backend, {.rows = 14, .data = data}, seed), IsEmpty());
  }
}

TEST_P(CudaOps, EqualsReferenceOnOtherShapes) {
  CudaSide got(GetParam());
  CpuSide want = reference_side();
  for (const Shape& shape : kOther) EXPECT_THAT(differences(got.backend, want.backend, shape, 7), IsEmpty());
}

TEST_P(CudaOps, EqualsReferenceAtReleasedWidths) {
  CudaSide got(GetParam());
  CpuSide want = reference_side();
  EXPECT_THAT(differences(got.backend, want.backend, Shape::released(5), 31), IsEmpty());
}

TEST_P(CudaOps, RowAloneEqualsRowInBatch) {
  CudaSide side(GetParam());
  for (uint64_t seed : {1, 2}) {
    const Shape shape{.rows = 11, .data = seed == 2 ? Data::kRough : Data::kNormal};
    EXPECT_THAT(piece_problems(side.backend, shape, seed, 1), IsEmpty());
  }
  EXPECT_THAT(piece_problems(side.backend, {.rows = 18, .hidden = 1184}, 3, 1), IsEmpty());
  // Rows whose exponents spread too far for f16, beside the kernels that do not use it.
  EXPECT_THAT(piece_problems(side.backend, {.rows = 21, .data = Data::kRough}, 4, 1), IsEmpty());
}

TEST_P(CudaOps, ChunksDoNotChangeBits) {
  CudaSide side(GetParam());
  for (int64_t chunk : {9, 40}) EXPECT_THAT(piece_problems(side.backend, {.rows = 137}, 21, chunk), IsEmpty());
  EXPECT_THAT(piece_problems(side.backend, Shape::released(70), 31, 62), IsEmpty());
  // Experts of more than 96, of more than 9 and of few rows.
  for (int64_t chunk : {80, 11}) {
    const Shape shape{.rows = 290, .hidden = 1152, .experts = 3, .expert_width = 384, .context = 400};
    EXPECT_THAT(piece_problems(side.backend, shape, 5, chunk), IsEmpty());
  }
}

// What one launch does for two operations.
TEST_P(CudaOps, TogetherIsAsApart) {
  CudaSide side(GetParam());
  for (int64_t rows : {1, 5, 8, 32, 33}) {
    const Shape shape{.rows = rows};
    for (auto run : {cases::norm_and_window_keys, cases::route_and_moe}) {
      const Outputs apart = run(side.backend, shape, 3, {0, rows}, false);
      const Outputs together = run(side.backend, shape, 3, {0, rows}, true);
      for (size_t i = 0; i < apart.size(); ++i)
        EXPECT_EQ(together[i].values.values, apart[i].values.values) << apart[i].name << ", " << rows << " rows";
    }
  }
}

TEST_P(CudaOps, RepeatsBits) {
  CudaSide a(GetParam()), b(GetParam());
  EXPECT_THAT(repeat_problems(a.backend, b.backend, {.rows = 33}, 11), IsEmpty());
}

// NaN and infinities may spoil their rows, but nothing hangs, faults or invents indices.
TEST_P(CudaOps, SurvivesNaN) {
  CudaSide side(GetParam());
  const Shape shape{.rows = 12, .data = Data::kNaN};
  for (uint64_t seed : {1, 2}) EXPECT_THAT(invented_ids(side.backend, shape, seed), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, CudaOps, ::testing::Values(Numerics::kVendor, Numerics::kFast),
                         [](const auto& n) { return std::string(numerics_name(n.param)); });

}  // namespace
}  // namespace deepinfer::kernels::testing
