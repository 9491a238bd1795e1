#!/usr/bin/env bash
# All micro benchmarks and the engine's own, as build/bench/*.json and a table on the terminal.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/bench
for binary in build/release/bench/bench_*; do
  [ -x "$binary" ] && [ -f "$binary" ] || continue
  name=$(basename "$binary")
  "$binary" --benchmark_out="build/bench/$name.json" --benchmark_out_format=json
done
for concurrency in 1 4 16; do
  ./deepinfer bench --quiet --concurrency "$concurrency" --prompts "$((concurrency * 2))" --json | tee "build/bench/engine_$concurrency.json"
done
