#!/usr/bin/env bash
# Makes the environment of one peer when it is absent, and prints its interpreter:  bench/peers/setup.sh ftllm
#
# One environment a peer, pinned in requirements-<peer>.txt, under DEEPINFER_PEERS_VENV (default: ~/.cache/deepinfer/peers).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peer=${1:?name a peer: ftllm}
requirements=$here/requirements-$peer.txt
[ -f "$requirements" ] || { echo "no $requirements" >&2; exit 2; }
venv=${DEEPINFER_PEERS_VENV:-$HOME/.cache/deepinfer/peers}/$peer
if [ ! -f "$venv/.done" ] || ! cmp -s "$requirements" "$venv/.done"; then
  echo "peers: installing $requirements into $venv" >&2
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2
  cp "$requirements" "$venv/.done"
fi
echo "$venv/bin/python"
