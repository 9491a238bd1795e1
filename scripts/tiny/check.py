"""Compare an exported checkpoint with the independent inference reference.

    python check.py CHECKPOINT REFERENCE_FOLDER [--documents 6] [--length 320]

The reference package (`dsv41`) loads the same files.  Held-out documents are run
through both: the loss of the text, the largest difference of the logits, the
agreement of the first choices, and the draft proposals.
"""

from __future__ import annotations

import argparse
import json
import sys

import corpus
import torch
import torch.nn.functional as F
from export import load_checkpoint
from tokenizers import Tokenizer

import model as m


@torch.no_grad()
def compare(folder: str, reference: str, documents: int, length: int, preset: str, bf16: bool) -> list[dict]:
    sys.path.insert(0, reference)
    from dsv41 import checkpoint as ref_checkpoint
    from dsv41.dspark import Draft, DraftCache
    from dsv41.engram import compressed_token_map
    from dsv41.model import PRESETS, Cache, Model

    tok = Tokenizer.from_file(f"{folder}/tokenizer.json")
    table, count = m.compressed_tokens(tok)
    with open(f"{folder}/config.json") as f:
        config = json.load(f)
    assert config["text_config"]["engram_compressed_vocab_size"] == count
    net = m.Tiny(config, table)
    load_checkpoint(net, folder)
    net.sparse = net.stable = True
    net.fake_weights = False  # the loaded values are the stored ones
    net.fake_cache, net.fake_acts = preset != "fp32", preset in ("vendor", "deepinfer")
    net.prepare(torch.bfloat16 if bf16 else torch.float32)

    cfg, weights = ref_checkpoint.load(folder)
    ref_table, ref_count = compressed_token_map(f"{folder}/tokenizer.json")
    assert (ref_table, ref_count) == (table, count), "compressed vocabulary"
    ref = Model(cfg, weights, PRESETS[preset], table)
    ref_draft = Draft(cfg, weights, PRESETS[preset])

    texts = corpus.heldout_stories(documents) + [
        i["prompt"] + i["answer"] for i in corpus.task_items("lookup_long", documents)
    ]
    out = []
    for text in texts:
        ids = tok.encode(text, add_special_tokens=False).ids[:length]
        n = len(ids)
        want, features = ref.forward(ids, Cache())
        padded = -(-n // net.text["sliding_window"]) * net.text["sliding_window"]
        tokens = torch.full((1, padded), 2)
        tokens[0, :n] = torch.tensor(ids)
        doc = torch.full((1, padded), -1)
        doc[0, :n] = 0
        hidden, taps, rows = net.backbone(tokens, doc)
        have = net.logits(hidden)[0, :n]
        target = torch.tensor(ids[1:])
        anchor = n - 8
        cache = DraftCache()
        ref_draft.commit(features[: anchor + 1], torch.arange(anchor + 1), cache)
        proposal, ref_logits, ref_confidence = ref_draft.propose(ids[anchor + 1], cache)
        state, normed = net.draft(taps, rows, tokens, torch.tensor([[anchor]]))
        previous = torch.tensor([[[ids[anchor + 1]] + proposal[:-1]]])
        logits, confidence = net.draft_heads(state, normed, previous)
        out.append(
            {
                "tokens": n,
                "loss": round(float(F.cross_entropy(have[:-1], target)), 5),
                "reference loss": round(float(F.cross_entropy(want[:-1], target)), 5),
                "largest difference": round(float((have - want).abs().max()), 5),
                "logit spread": round(float(want.std()), 3),
                "same first choice": round(float((have.argmax(-1) == want.argmax(-1)).float().mean()), 4),
                "draft difference": round(float((logits[0, 0] - ref_logits).abs().max()), 5),
                "confidence difference": round(float((confidence[0, 0] - ref_confidence).abs().max()), 5),
                "same draft": logits[0, 0].argmax(-1).tolist() == proposal,
            }
        )
    return out


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("checkpoint")
    ap.add_argument("reference", help="folder that holds the package dsv41")
    ap.add_argument("--documents", type=int, default=3)
    ap.add_argument("--length", type=int, default=320)
    ap.add_argument("--preset", default="fp32", choices=["fp32", "qat", "vendor", "deepinfer"])
    ap.add_argument("--bf16", action="store_true", help="run this side in bf16, as training does")
    args = ap.parse_args()
    rows = compare(args.checkpoint, args.reference, args.documents, args.length, args.preset, args.bf16)
    for row in rows:
        print(json.dumps(row))
    gap = max(abs(r["loss"] - r["reference loss"]) for r in rows)
    print(f"largest loss difference {gap:.5f}")
    if gap > (0.002 if args.preset in ("fp32", "qat") and not args.bf16 else 0.05):
        raise SystemExit("the reference disagrees")


if __name__ == "__main__":
    main()
