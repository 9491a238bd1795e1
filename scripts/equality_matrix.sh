#!/usr/bin/env bash
# Every combination of the equality matrix (src/engine/equality.h); the tests run a pairwise part of it.
#
#   scripts/equality_matrix.sh [BUILD [PIECE]]      BUILD: folder of the build (build/release), or the program itself;
#                                                   di_engine_gpu_test of build/cuda runs it on a GPU
#                                                   PIECE: one of 0 to 23; default: all of them, one by one
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build/release}
[ -d "$program" ] && program=$program/tests/di_engine_slow_test
exec "$program" --gtest_also_run_disabled_tests \
  --gtest_filter="*EqualityMatrixPiece.*Full/${2:-*}"
