#!/usr/bin/env bash
# Every fuzz target for a while, from its seed corpus, as many at once as there are cores.
#   Usage: scripts/run_fuzz.sh [SECONDS] [TARGET...]
#   New inputs go to build/fuzz/corpus/<target>; a finding fails the run and leaves its input in build/fuzz/findings.
set -euo pipefail
cd "$(dirname "$0")/.."
export seconds=${1:-30}
[ $# -gt 0 ] && shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in fuzz/fuzz_*.cc; do
    name=$(basename "$source" .cc)
    targets+=("${name#fuzz_}")
  done
fi
mkdir -p build/fuzz/findings

fuzz_one() {
  local corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log
  mkdir -p "$corpus"
  if "build/fuzz/fuzz/fuzz_$1" -max_total_time="$seconds" -artifact_prefix="build/fuzz/findings/$1-" -print_final_stats=1 \
    "$corpus" "fuzz/corpus/$1" >"$log" 2>&1; then
    echo "fuzz: $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, no finding"
  else
    echo "fuzz: $1: FINDING, see $log"
    grep -E 'ERROR|SUMMARY|Test unit' "$log"
    return 1
  fi
}
export -f fuzz_one
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {}'
