// The equality matrix and stored windows on a GPU. Needs one: ./build.sh gpu-test.
#include "engine/equality.h"
#include "engine/stored_windows.h"

namespace deepinfer::engine {
namespace {

TEST(GpuEqualityMatrix, Pairwise) {
  expect_equal(pairwise(), "cuda");
}

class GpuEqualityMatrixPiece : public testing::TestWithParam<int> {};

TEST_P(GpuEqualityMatrixPiece, DISABLED_Full) {
  expect_equal(piece_of_all(GetParam()), "cuda");
}

INSTANTIATE_TEST_SUITE_P(Pieces, GpuEqualityMatrixPiece, testing::Range(0, kEqualityPieces));

class StoredWindows : public testing::TestWithParam<sched::Truncation> {
 protected:
  stored_windows::Side side() const { return {GetParam(), "cuda"}; }
};

TEST_P(StoredWindows, EveryLengthGivesTheBitsOfAColdRun) {
  stored_windows::every_length_gives_the_bits_of_a_cold_run(side());
}
TEST_P(StoredWindows, TurnsOfAConversationGoOnFromTheOutputsWindows) {
  stored_windows::turns_go_on_from_the_outputs_windows(side());
}
TEST_P(StoredWindows, WithoutPlacesAHitIsDeepAndNothingIsStored) {
  stored_windows::without_places_a_hit_is_deep(side());
}

INSTANTIATE_TEST_SUITE_P(Truncations, StoredWindows,
                         testing::Values(sched::Truncation::kOff, sched::Truncation::kCompact),
                         [](const auto& test) { return std::to_string(static_cast<int>(test.param)); });

}  // namespace
}  // namespace deepinfer::engine
