"""Teacher-forced accuracy of every task by the independent reference: what an engine's evaluation should reproduce.

    python reference_eval.py ../../models/tiny ../oracle ../../eval/tiny [--preset vendor] [--per-task 128] [--compact]

The second folder holds the package `dsv41`.  An item counts as right when every answer token and the end token is the
first choice in one pass over prompt and answer.  Writes expected.json beside items.jsonl after every task:

    {"preset", "replay", "checkpoint": sha256 of the shards,
     "tasks": {task: {"items", "right", "wrong": [item numbers in the task]}}}

A run that was stopped goes on with the tasks that are missing, if the checkpoint is the same.

With --compact the layers from the boundary on see only the last K = window + 12 tokens of the prompt through their
windows; items with a shorter prompt are left out: nothing changes for them. The file is expected_compact.json then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time

import torch
from tokenizers import Tokenizer

import model as m


def digest(folder: str) -> str:
    h = hashlib.sha256()
    for file in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        with open(os.path.join(folder, file), "rb") as f:
            h.update(f.read())
    return h.hexdigest()


def load_reference(folder: str, package: str, preset: str):
    sys.path.insert(0, package)
    from dsv41 import checkpoint
    from dsv41.model import PRESETS, Cache, Model

    table, _ = m.compressed_tokens(Tokenizer.from_file(os.path.join(folder, "tokenizer.json")))
    cfg, weights = checkpoint.load(folder)
    return Model(cfg, weights, PRESETS[preset], table), Cache


@torch.no_grad()
def is_right(model, cache, item: dict, keep: int | None) -> bool:
    prompt, answer = item["prompt_ids"], item["answer_ids"]
    logits, _ = model.forward(prompt + answer[:-1], cache(), keep_from=max(0, len(prompt) - keep) if keep else 0)
    return logits[len(prompt) - 1 :].argmax(-1).tolist() == answer


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("checkpoint")
    ap.add_argument("reference", help="folder that holds the package dsv41")
    ap.add_argument("eval", help="folder of items.jsonl; receives expected.json")
    ap.add_argument("--preset", default="vendor", choices=["fp32", "qat", "vendor", "deepinfer"])
    ap.add_argument("--per-task", type=int, default=128)
    ap.add_argument("--compact", action="store_true")
    ap.add_argument("--threads", type=int, default=1)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    model, cache = load_reference(args.checkpoint, args.reference, args.preset)
    keep = model.cfg.sliding_window + model.cfg.dspark_block_size + 1 + 6 if args.compact else None
    tasks: dict[str, list] = {}
    with open(os.path.join(args.eval, "items.jsonl"), encoding="utf-8") as f:
        for line in f:
            item = json.loads(line)
            tasks.setdefault(item["task"], []).append(item)
    path = os.path.join(args.eval, "expected_compact.json" if args.compact else "expected.json")
    out = {
        "preset": args.preset,
        "replay": "compact" if args.compact else "off",
        "checkpoint": digest(args.checkpoint),
        "tasks": {},
    }
    if os.path.exists(path):
        with open(path) as f:
            old = json.load(f)
        if old | {"tasks": {}} == out:
            out = old
    order = sorted(tasks, key=lambda t: sum(len(i["prompt_ids"]) for i in tasks[t]))  # the cheap ones first
    for task in order:
        items = [(i, item) for i, item in enumerate(tasks[task]) if not keep or len(item["prompt_ids"]) > keep]
        items = items[: args.per_task]
        if not items or out["tasks"].get(task, {}).get("items") == len(items):
            continue
        began = time.time()
        wrong = [i for i, item in items if not is_right(model, cache, item, keep)]
        out["tasks"][task] = {"items": len(items), "right": len(items) - len(wrong), "wrong": wrong}
        print(task, out["tasks"][task], f"{time.time() - began:.0f}s", flush=True)
        with open(path + ".new", "w") as f:
            f.write(
                "{" + "".join(f'"{k}": {json.dumps(v)},\n ' for k, v in out.items() if k != "tasks") + '"tasks": {\n  '
            )
            f.write(",\n  ".join(f'"{k}": {json.dumps(v)}' for k, v in out["tasks"].items()) + "\n }}\n")
        os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
