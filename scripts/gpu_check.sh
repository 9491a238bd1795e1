#!/usr/bin/env bash
# Runs the GPU tests and benchmarks and keeps their logs; goes on after a failure and says at the end what failed.
#
#   scripts/gpu_check.sh [PROGRAMS [OUT]]     PROGRAMS: folder with *_gpu_test and bench_gpu (default build/cuda/tests and
#                                             build/cuda/bench); OUT: folder for the logs (default build/gpu)
#   GPU_CHECK="test bench sanitize"           which parts to run (default test bench); each program has GPU_CHECK_SECONDS
#                                             (300)
#
# On a machine without the sources, carry the programs, models/tiny and tests/golden, and run it from their root.
set -uo pipefail
cd "$(dirname "$0")/.."
programs=${1:-build/cuda}
out=${2:-build/gpu}
parts=${GPU_CHECK:-test bench}
mkdir -p "$out"
failed=()

# step NAME COMMAND...: log in OUT/NAME.log, the last lines here.
step() {
  local name=$1 start=$SECONDS
  shift
  if timeout "${GPU_CHECK_SECONDS:-300}" "$@" >"$out/$name.log" 2>&1; then
    echo "ok      $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s)"
    failed+=("$name")
    tail -n 25 "$out/$name.log"
  fi
}
find_program() { find "$programs" -name "$1" -type f -perm -u+x; }

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader || exit 2
if [[ $parts == *test* ]]; then
  for program in $(find_program '*_gpu_test'); do step "$(basename "$program")" "$program"; done
fi
if [[ $parts == *sanitize* ]]; then
  filter='*EqualsReferenceAtReleasedWidths/fast'
  for tool in memcheck racecheck; do
    for program in $(find_program 'di_kernels_gpu_test'); do
      step "kernels_$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" --gtest_filter="$filter"
    done
  done
fi
if [[ $parts == *bench* ]]; then
  for program in $(find_program 'bench_gpu'); do
    step bench_gpu "$program"
    cat "$out/bench_gpu.log"
  done
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
