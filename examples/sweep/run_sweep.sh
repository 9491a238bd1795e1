#!/usr/bin/env bash
# Speed over a grid of loads, as JSON and as a chart: prefill, decode, or the ways to verify drafts.
#
#   examples/sweep/run_sweep.sh --role prefill|decode|drafts [options]        --help lists them
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
[ -x "$root/deepinfer" ] || { echo "the command is not built: run ./build.sh run" >&2; exit 2; }
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$root/examples/sweep/sweep.py" "$@"
