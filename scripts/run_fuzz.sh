#!/usr/bin/env bash
# Every fuzz target for a while, from its seed corpus.  Usage: scripts/run_fuzz.sh [SECONDS] [TARGET...]
#   New inputs go to build/fuzz/corpus/<target>; a finding ends the run with its input in build/fuzz/findings.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
[ $# -gt 0 ] && shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for binary in build/fuzz/fuzz/fuzz_*; do [ -x "$binary" ] && [ -f "$binary" ] && targets+=("$(basename "$binary" | sed 's/^fuzz_//')"); done
fi
mkdir -p build/fuzz/findings
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target"
  echo "fuzz: $target for $seconds s"
  "build/fuzz/fuzz/fuzz_$target" -max_total_time="$seconds" -artifact_prefix="build/fuzz/findings/$target-" -print_final_stats=1 \
    "build/fuzz/corpus/$target" "fuzz/corpus/$target" 2>&1 | grep -E 'ERROR|SUMMARY|stat::number_of_executed_units|Test unit'
done
