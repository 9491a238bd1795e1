#!/usr/bin/env bash
# The whole training on one GPU, unattended.  Usage: run.sh smoke|full|tune FOLDER
#   smoke  every phase for a few steps, then export and evaluation (2 to 4 minutes, most of it compilation)
#   full   backbone, tuning for inference, draft blocks, export, evaluation
#   tune   the same without the backbone, from the checkpoint INIT
# FOLDER receives the log, the state and the checkpoint (FOLDER/checkpoint).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mode=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True TORCHINDUCTOR_CACHE_DIR="$folder/../inductor"
init=(); [ -n "${INIT:-}" ] && init=(--init "$(cd "$INIT" && pwd)")
cd "$here"
tok=data/tok; [ -f "$tok/tokenizer.json" ] || tok=../../models/tiny
glosses=(); [ -f data/glosses.tsv.xz ] && glosses=(--glosses data/glosses.tsv.xz)
common=(--state "$folder/state" --tokenizer "$tok" "${glosses[@]}" --out "$folder/checkpoint" ${TINY_OPTIONS:-})
tune=(--lr 8e-4 --muon-lr 8e-3 --index-boost 3)
if [ "$mode" = smoke ]; then
  rm -rf "$folder/state"
  python3 train.py "${common[@]}" --max-steps 40 --minutes 4 --every 1 --per-task 0 backbone
  python3 train.py "${common[@]}" --max-steps 12 --minutes 3 --every 1 --per-task 0 "${tune[@]}" tune
  python3 train.py "${common[@]}" --max-steps 12 --minutes 2 --every 1 --per-task 8 draft
else
  [ "$mode" = tune ] || python3 train.py "${common[@]}" --total "${BACKBONE_MINUTES:-16}" --minutes 99 --per-task 0 backbone
  python3 train.py "${common[@]}" "${init[@]}" --total "${TUNE_MINUTES:-9}" --minutes 99 --per-task 0 --look 80 "${tune[@]}" tune
  python3 train.py "${common[@]}" --total "${DRAFT_MINUTES:-5}" --minutes 99 --per-task 128 draft
fi
echo "done: $mode"
