"""Consistency checks on the fixture:  python -m dsv41.selfcheck OUT_DIR   (the directory make_fixtures wrote)"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from . import checkpoint
from .dspark import Draft, DraftCache
from .engram import compressed_token_map
from .model import PRESETS, Cache, Model

LENGTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 71, 72, 73, 79, 80, 81, 127, 128, 129, 161]


def main(target: str) -> None:
    torch.set_num_threads(1)
    root = Path(target)
    cfg, w = checkpoint.load(root / "checkpoint")
    token_map, count = compressed_token_map(root / "checkpoint" / "tokenizer.json")
    assert count == cfg.engram_compressed_vocab_size and checkpoint.engram_rows(cfg) == cfg.engram_num_embeddings
    common = load_file(root / "golden" / "common.safetensors")
    ids = common["input_ids"].tolist()
    assert common["token_map"].tolist() == token_map
    for name in PRESETS:
        model, gold = Model(cfg, w, PRESETS[name], token_map), load_file(root / "golden" / f"{name}.safetensors")
        draft = Draft(cfg, w, PRESETS[name])
        full, feats = model.forward(ids, Cache())
        worst = {"golden": float((full - gold["logits"]).abs().max())}
        # token by token, and in chunks of odd sizes, against one forward
        for label, sizes in (("one by one", [1] * len(ids)), ("chunks", [5, 1, 8, 2, 17, 1, 1, 40, 3, 64, 19])):
            cache, parts, at = Cache(), [], 0
            for n in sizes:
                parts.append(model.forward(ids[at : at + n], cache)[0])
                at += n
            worst[label] = float((torch.cat(parts) - full[:at]).abs().max())
        # prompts of every boundary length: causality says the logits equal those of the long forward
        worst["lengths"] = max(float((model.forward(ids[:n], Cache())[0] - full[:n]).abs().max()) for n in LENGTHS)
        # drafts: features committed at once and one by one
        a, b, n = DraftCache(), DraftCache(), 30
        draft.commit(feats[:n], torch.arange(n), a)
        for i in range(n):
            draft.commit(feats[i : i + 1], torch.tensor([i]), b)
        worst["draft"] = float((draft.hidden(ids[n], a) - draft.hidden(ids[n], b)).abs().max())
        print(name, {k: float(f"{v:.2g}") for k, v in worst.items()})


if __name__ == "__main__":
    main(sys.argv[1])
