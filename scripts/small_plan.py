#!/usr/bin/env python3
"""Prints a config.json with the layer plan of the released model at the widths of the random fixture.

    scripts/small_plan.py > config.json && deepinfer make-random --shape config.json --out DIR

40 layers, window, sources, boundary, drafts and context length as released; what depends on the plan (rows computed,
replays, blocks, states) can be measured on any machine.
"""

from __future__ import annotations

import json
from pathlib import Path

FIXTURE = Path(__file__).resolve().parent.parent / "tests/golden/random-small/checkpoint/config.json"
PLAN = {
    "num_hidden_layers": 40,
    "max_position_embeddings": 1 << 20,
    "sliding_window": 128,
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "candidate_source_layer_id": 20,
    "engram_layer_ids": [1, 14],
    "dspark_target_layer_ids": [37, 38, 39],
}


def main() -> None:
    config = json.loads(FIXTURE.read_text())
    config["text_config"] |= PLAN
    print(json.dumps(config, indent=1))


if __name__ == "__main__":
    main()
