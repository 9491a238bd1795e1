// The equality matrix on the CPU.
#include "engine/equality.h"

namespace deepinfer::engine {
namespace {

TEST(EqualityMatrix, Pairwise) {
  expect_equal(pairwise(), "cpu");
}

class EqualityMatrixPiece : public testing::TestWithParam<int> {};

TEST_P(EqualityMatrixPiece, DISABLED_Full) {
  expect_equal(piece_of_all(GetParam()), "cpu");
}

INSTANTIATE_TEST_SUITE_P(Pieces, EqualityMatrixPiece, testing::Range(0, kEqualityPieces));

}  // namespace
}  // namespace deepinfer::engine
