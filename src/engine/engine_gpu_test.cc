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

}  // namespace

namespace stored_windows {

INSTANTIATE_TEST_SUITE_P(Truncations, StoredWindows, sides_of("cuda"), name_of);

}  // namespace stored_windows
}  // namespace deepinfer::engine
