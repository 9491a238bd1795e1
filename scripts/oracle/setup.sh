#!/usr/bin/env bash
# Makes the oracle's Python environment when it is absent, and prints its interpreter.
#
#   "$(scripts/oracle/setup.sh)" scripts/check_fixture.py
#
# DEEPINFER_ORACLE_VENV names the environment (default: ~/.cache/deepinfer/oracle). About 5 GB: torch from PyPI brings its
# GPU libraries along, although the oracle runs on the CPU.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${DEEPINFER_ORACLE_VENV:-$HOME/.cache/deepinfer/oracle}
python=$venv/bin/python
if ! "$python" -c 'import numpy, safetensors, tokenizers, torch' 2>/dev/null; then
  echo "oracle: installing $here/requirements.txt into $venv" >&2
  python3 -m venv "$venv"
  "$python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
fi
echo "$python"
