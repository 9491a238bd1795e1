#!/usr/bin/env python3
"""Compare the engine with the oracle on random checkpoints of other legal shapes.

    "$(scripts/oracle/setup.sh)" scripts/check_shapes.py [--seeds 51] [--first 0] [--keep DIR]

The first seeds are fixed extremes (EXTREMES below: one stream, eight streams, no draft, no Engram, a window of one,
rotation of the whole head, no candidates, window layers alone ...); the rest draw every dimension. For each: fp32 and
qat, two prompts and an image span, in one piece and in odd chunks; logits within 2e-4, the chosen and candidate entries
equal, Engram rows equal, greedy drafts equal and their confidences within 1e-3. In qat a cache value may lie on the
boundary of two codes: the engine then has to agree throughout with the oracle in double or with the oracle in single
precision. A difference of the chosen entries is forgiven only where the oracle's own scores lie closer together than
1e-5. What was forgiven is printed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "oracle"))
import torch
from dsv41 import checkpoint
from dsv41.config import Config
from dsv41.dspark import Draft, DraftCache
from dsv41.engram import compressed_token_map
from dsv41.make_fixtures import write_tokenizer
from dsv41.model import PRESETS, Cache, Model

from engine import Report, difference, logits, masks_differ

LOGITS, CONFIDENCE, NEAR = 2e-4, 1e-3, 1e-5

# a small model with every mechanism; the extremes change some of it
BASE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "o_groups": 2,
    "sliding_window": 8,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 64,
    },
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 8,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 8,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "swiglu_limit": 1.5,
    "engram_layer_ids": [1, 2],
    "engram_num_embeddings": [0, 0],
    "engram_vocab_size": 200,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "num_nextn_predict_layers": 2,
    "dspark_noise_token_id": 317,
    "dspark_target_layer_ids": [3, 5],
    "dspark_markov_rank": 16,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}

NO_ENGRAM = {"engram_layer_ids": [], "engram_num_embeddings": []}
NO_DRAFT = {"num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 2, 1, 1, 1], "dspark_target_layer_ids": []}
EXTREMES: list[tuple[str, dict]] = [
    ("one stream", {"hc_mult": 1}),
    ("eight streams", {"hc_mult": 8}),
    ("three streams, one Sinkhorn iteration", {"hc_mult": 3, "hc_sinkhorn_iters": 1}),
    ("window of one", {"sliding_window": 1}),
    ("window longer than the prompt", {"sliding_window": 1024}),
    ("whole head rotates", {"qk_rope_head_dim": 32}),
    ("rotation of two channels", {"qk_rope_head_dim": 2}),
    ("no draft", NO_DRAFT),
    ("no Engram", NO_ENGRAM),
    (
        "no draft, no Engram, no candidates, no scaling",
        NO_DRAFT | NO_ENGRAM | {"candidate_source_layer_id": -1, "rope_scaling": None},
    ),
    ("no candidate source", {"candidate_source_layer_id": -1}),
    ("no rope scaling", {"rope_scaling": None}),
    (
        "window layers alone",
        {
            "compress_ratios": [0] * 8,
            "kv_source_layer_ids": [],
            "index_source_layer_ids": [],
            "candidate_source_layer_id": -1,
        },
    ),
    (
        "ratio 1 alone, candidates from layer 0",
        {
            "compress_ratios": [1] * 6 + [0, 0],
            "kv_source_layer_ids": [0],
            "index_source_layer_ids": [0, 2, 4],
            "candidate_source_layer_id": 0,
        },
    ),
    (
        "ratio 2 alone, a source in every layer",
        {
            "compress_ratios": [2] * 6 + [0, 0],
            "kv_source_layer_ids": [0, 1, 2, 3, 4, 5],
            "index_source_layer_ids": [0, 1, 2, 3, 4, 5],
            "candidate_source_layer_id": -1,
        },
    ),
    (
        "ratio 1 before ratio 2, window layers between",
        {
            "compress_ratios": [1, 0, 2, 0, 1, 1, 0, 0],
            "kv_source_layer_ids": [0, 2, 4],
            "index_source_layer_ids": [0, 2, 4, 5],
            "candidate_source_layer_id": -1,
        },
    ),
    ("groups narrower than a scale tile", {"o_groups": 4, "o_lora_rank": 8}),
    ("one group, one head", {"o_groups": 1, "num_attention_heads": 1}),
    ("one expert for each token", {"num_experts_per_tok": 1, "dspark_num_experts_per_tok": 1}),
    ("every expert for each token", {"num_experts_per_tok": 8, "dspark_num_experts_per_tok": 4}),
    ("a clamp that always acts", {"swiglu_limit": 0.05}),
    ("bigrams alone", {"engram_max_ngram_size": 2, "engram_n_heads": 3}),
    ("trigrams, one Engram head of 96", {"engram_max_ngram_size": 3, "engram_n_heads": 1, "engram_head_dim": 96}),
    ("draft block of one", {"dspark_block_size": 1}),
    (
        "draft block of 32, one stage",
        {"dspark_block_size": 32, "num_nextn_predict_layers": 1, "compress_ratios": [0, 2, 2, 1, 1, 1, 0]},
    ),
    ("candidate blocks of three entries", {"candidate_block_size": 3, "candidate_topk_blocks": 2, "index_topk": 5}),
    ("one entry a query", {"index_topk": 1, "candidate_topk_blocks": 1, "candidate_block_size": 1}),
    ("one index head of 96", {"index_n_heads": 1, "index_head_dim": 96}),
    ("one layer of each width", {"hidden_size": 160, "head_dim": 96, "q_lora_rank": 224, "moe_intermediate_size": 96}),
    ("other scale of the routing weights, tempered gate", {"routed_scaling_factor": 2.5, "gate_temp": 1.5}),
    ("large norm eps", {"rms_norm_eps": 1e-5, "hc_eps": 1e-4}),
]


def drawn(r: random.Random) -> dict:
    """A random legal shape: every key of BASE that is a dimension, and the structure of the layers."""
    n, stages = r.randint(1, 9), r.randint(0, 3)
    ratios, sources, choosers, current = [], [], [], 0
    for i in range(n):
        # a layer starts a new source, goes on reading the last one, or has the window alone
        kind = r.choice(["source", "reuse", "reuse", "window"])
        if kind == "source" or (kind == "reuse" and not sources):
            current = r.choice([1, 2])
            ratios.append(current)
            sources.append(i)
            choosers.append(i)
        elif kind == "reuse":
            ratios.append(current)
            if r.random() < 0.4:
                choosers.append(i)
        else:
            ratios.append(0)
    if ratios[0] == 2 and r.random() < 0.5:
        ratios[0], sources, choosers = 0, [s for s in sources if s], [s for s in choosers if s]
        if any(x and (not sources or i < sources[0]) for i, x in enumerate(ratios)):
            return drawn(r)
    last_source = sources[-1] if sources else -1
    rope = r.choice([2, 8, 16, 32])
    heads, groups = r.choice([(1, 1), (2, 1), (2, 2), (4, 2), (6, 3), (8, 4)])
    experts, draft_experts = r.randint(1, 12), r.randint(1, 6)
    engram = sorted(r.sample(range(n), r.randint(0, min(n, 2))))
    vocab = r.choice([288, 320, 511])
    candidates = ratios[last_source] == 1 and last_source >= 0 and r.random() < 0.7
    return {
        "vocab_size": vocab,
        "hidden_size": 32 * r.randint(1, 6),
        "num_hidden_layers": n,
        "num_attention_heads": heads,
        "head_dim": 32 * r.randint(1, 4),
        "qk_rope_head_dim": rope,
        "q_lora_rank": 32 * r.randint(1, 4),
        "o_groups": groups,
        "o_lora_rank": 32 * r.randint(1, 3),
        "sliding_window": r.choice([1, 2, 5, 8, 31, 128]),
        "rope_scaling": r.choice([None, BASE["rope_scaling"]]),
        "compress_ratios": ratios + [0] * stages,
        "kv_source_layer_ids": sources,
        "index_source_layer_ids": choosers,
        "index_n_heads": r.choice([1, 3, 8]),
        "index_head_dim": 32 * r.randint(1, 3),
        "index_topk": r.choice([1, 4, 16, 512]),
        "candidate_source_layer_id": last_source if candidates else -1,
        "candidate_topk_blocks": r.randint(1, 8),
        "candidate_block_size": r.choice([1, 3, 8]),
        "moe_intermediate_size": 32 * r.randint(1, 4),
        "n_routed_experts": experts,
        "num_experts_per_tok": r.randint(1, min(experts, 6)),
        "swiglu_limit": r.choice([0.1, 1.5, 10.0]),
        "hc_mult": r.randint(1, 8),
        "hc_sinkhorn_iters": r.choice([1, 2, 20]),
        "engram_layer_ids": engram,
        "engram_num_embeddings": [0] * len(engram),
        "engram_max_ngram_size": r.randint(2, 4),
        "engram_n_heads": r.randint(1, 4),
        "engram_head_dim": 32 * r.randint(1, 2),
        "engram_vocab_size": r.choice([2, 50, 300]),
        "num_nextn_predict_layers": stages,
        "dspark_block_size": r.choice([1, 2, 5, 8, 32]),
        "dspark_noise_token_id": vocab - 3,
        "dspark_target_layer_ids": sorted(r.sample(range(n), r.randint(1, min(n, 3)))) if stages else [],
        "dspark_markov_rank": r.choice([1, 16, 40]),
        "dspark_n_routed_experts": draft_experts,
        "dspark_num_experts_per_tok": r.randint(1, draft_experts),
    }


def make(changes: dict, seed: int, directory: Path) -> None:
    """A random checkpoint of that shape, with its own tokenizer."""
    cfg = Config(**(BASE | changes))
    directory.mkdir(parents=True)
    write_tokenizer(directory / "tokenizer.json", cfg.vocab_size)
    cfg.engram_compressed_vocab_size = compressed_token_map(directory / "tokenizer.json")[1]
    cfg.engram_num_embeddings = checkpoint.engram_rows(cfg)
    cfg.check()
    checkpoint.write_random(cfg, directory, seed, shards=2)


def near_ties(score: torch.Tensor, mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether every entry on which two choices differ scores within NEAR of the last one chosen, row by row.

    score, theirs: [rows, entries] of the oracle; mine: the same rows of the engine."""
    mine = torch.nn.functional.pad(mine.bool(), (0, theirs.shape[-1] - mine.shape[-1]))
    for row in (mine != theirs).any(-1).nonzero().flatten().tolist():
        chosen, disputed = score[row][theirs[row]], score[row][mine[row] != theirs[row]]
        if mine[row].sum() != theirs[row].sum() or (disputed - chosen.min()).abs().max() > NEAR:
            return False
    return True


def oracle(model: Model, draft: Draft, ids: list[int], mask):
    """(logits, trace, draft tokens or None, confidences or None) of one prompt in one piece."""
    trace: dict = {}
    out, features = model.forward(ids, Cache(), mask, trace)
    if not model.cfg.num_nextn_predict_layers:
        return out, trace, None, None
    cache = DraftCache()
    draft.commit(features, torch.arange(len(ids)), cache)
    tokens, _, confidence = draft.propose(int(out[-1].argmax()), cache)
    return out, trace, tokens, confidence


class Findings(Report):
    """A report that is kept back until it is known which of the oracle's precisions the engine agrees with."""

    def __init__(self):
        super().__init__(quiet=True)
        self.kept, self.forgiven = [], 0

    def check(self, label: str, ok: bool, figure) -> bool:
        self.checks, self.failures = self.checks + 1, self.failures + (not ok)
        self.kept.append((label, ok, figure))
        return ok


def compare_sequence(cfg, here: str, i: int, whole: dict, parts: dict, expected) -> Findings:
    """Sequence i of the engine's two runs against (logits, trace, draft tokens, confidences)."""
    found = Findings()
    want, trace, tokens, confidence = expected
    for key in [k for k in trace if k.endswith((".chosen", ".candidates"))]:
        layer, kind = key.split(".")[1:]
        mine = whole[f"{kind}.{i}.{layer}"]
        wrong = masks_differ(mine, trace[key])
        if wrong and kind == "chosen" and near_ties(trace[f"layers.{layer}.index_score"], mine, trace[key]):
            found.forgiven += wrong
            continue
        found.equal(f"{here}: queries with other {kind} entries in layer {layer}", wrong, 0)
    if found.forgiven:
        return found  # what follows an equal score taken the other way cannot be compared
    found.at_most(f"{here}: logits", difference(whole[f"logits.{i}"], want), LOGITS)
    found.at_most(f"{here}: logits in chunks", difference(parts[f"logits.{i}"], want), LOGITS)
    if cfg.engram_layer_ids:
        rows = trace["engram_rows"]
        found.equal(f"{here}: Engram rows", int((whole[f"engram.{i}"].reshape(rows.shape) != rows).sum()), 0)
    if tokens is not None:
        found.equal(f"{here}: draft", whole[f"draft.{i}"].tolist(), tokens)
        found.at_most(f"{here}: confidence", difference(whole[f"confidence.{i}"], confidence), CONFIDENCE)
    else:
        found.equal(f"{here}: no draft proposed", whole.get(f"draft.{i}", torch.empty(0)).numel(), 0)
    return found


def compare(report: Report, label: str, directory: Path, seed: int, options: list[str]) -> str:
    """Checks one checkpoint; returns what had to be forgiven."""
    models = {dtype: checkpoint.load(directory, dtype=dtype) for dtype in (torch.float64, torch.float32)}
    cfg = models[torch.float64][0]
    token_map = compressed_token_map(directory / "tokenizer.json")[0] if cfg.engram_layer_ids else None
    r = random.Random(seed)
    prompts = [[r.randrange(3, cfg.vocab_size - 12) for _ in range(n)] for n in (97, 2)]
    start = r.randrange(0, 20)
    span = [start, start + r.randrange(1, 20)]
    sequences = [*prompts, {"ids": prompts[0][:41], "image": [span]}]
    ties = flips = 0
    for name in ("fp32", "qat"):
        whole = logits(directory, sequences, "--numerics", name, "--trace", *options)
        parts = logits(directory, sequences, "--numerics", name, "--chunk", str(r.choice([1, 3, 5, 8, 13])), *options)
        last = logits(directory, sequences, "--numerics", name, "--last", *options)
        for i, sequence in enumerate(sequences):
            same = torch.equal(last[f"logits.{i}"], whole[f"logits.{i}"][-1:])
            report.check(f"{label}, {name}, sequence {i}: logits of the last row alone, in bits", same, "")
            ids, mask = sequence, None
            if isinstance(sequence, dict):
                ids, mask = sequence["ids"], torch.zeros(len(sequence["ids"]), dtype=torch.bool)
                mask[span[0] : span[1]] = True
            sides = []
            for _, w in models.values():
                model, draft = Model(cfg, w, PRESETS[name], token_map), Draft(cfg, w, PRESETS[name])
                expected = oracle(model, draft, ids, mask)
                sides.append(compare_sequence(cfg, f"{label}, {name}, sequence {i}", i, whole, parts, expected))
                if not sides[-1].failures or name == "fp32":
                    break
            best = min(sides, key=lambda side: side.failures)
            flips += best is not sides[0]
            ties += best.forgiven
            for finding in best.kept:
                report.check(*finding)
    notes = [f"{ties} queries chose among equal scores"] * (ties > 0)
    notes += [f"{flips} sequences round as single precision does"] * (flips > 0)
    return ", ".join(notes)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seeds", type=int, default=len(EXTREMES) + 20, help="how many shapes")
    ap.add_argument("--first", type=int, default=0, help="first seed")
    ap.add_argument("--keep", type=Path, help="keep checkpoints of failing shapes in this folder")
    ap.add_argument("--options", default="", help="more options of `deepinfer logits`, in one string")
    ap.add_argument("--verbose", action="store_true", help="print every check")
    a = ap.parse_args()
    torch.set_num_threads(1)
    report = Report(quiet=not a.verbose)
    for seed in range(a.first, a.first + a.seeds):
        label, changes = EXTREMES[seed] if seed < len(EXTREMES) else (f"seed {seed}", drawn(random.Random(seed)))
        with tempfile.TemporaryDirectory(prefix="shape-") as folder:
            directory, before = Path(folder) / "checkpoint", report.failures
            make(changes, seed, directory)
            try:
                notes = compare(report, label, directory, seed, a.options.split())
            except (RuntimeError, KeyError) as error:
                notes = ""
                report.check(
                    label, False, str(error)[:500] if isinstance(error, RuntimeError) else f"no tensor {error}"
                )
            verdict = "ok" if report.failures == before else "FAILED"
            print(f"{seed:3d} {verdict}: {label}{f' ({notes})' if notes else ''}", flush=True)
            if a.keep and report.failures > before:
                shutil.copytree(directory, a.keep / str(seed), dirs_exist_ok=True)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
