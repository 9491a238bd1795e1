#!/usr/bin/env bash
# Every combination of the equality matrix (src/engine/equality_slow_test.cc); the tests run a pairwise part of it.
#
#   scripts/equality_matrix.sh [build/release [PIECE]]      PIECE: one of 0 to 23; default: all of them, one by one
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${1:-build/release}/tests/di_engine_slow_test" --gtest_also_run_disabled_tests \
  --gtest_filter="*EqualityMatrixPiece.*Full/${2:-*}"
