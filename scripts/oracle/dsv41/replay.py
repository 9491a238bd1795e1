"""Prefill with a prefix hit, replayed windows and a truncated consumer region (spec/replay.md, spec/serving.md 2.4).

    positions      0 ............ H-R ........ H ............ L-K ........ L
    compressed     cached         cached       new            new
    producers      -              replayed     computed       computed
    consumers      -              -            -              computed

`prefill` is the oracle of all of it, in the `mask` form of model.py: K = keep, H = hit, R = replay. R = window is the
bounded replay; R >= producers * (window - 1) gives the rows of a cold run (deep replay); R < window is refused.

    python -m dsv41.replay CHECKPOINT              checks the claims of spec/serving.md 2.4, in double precision
    python -m dsv41.replay CHECKPOINT OUT_FILE     writes golden outputs (tests/golden/random-small/golden/replay)
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from . import checkpoint
from .dspark import Draft, DraftCache
from .engram import compressed_token_map
from .model import PRESETS, Cache, Model, Numerics


def hit_cap(matched: int, length: int, keep: int | None, block: int = 128) -> int:
    """The longest usable hit: whole blocks, one new row at least, and every kept row a new row."""
    limit = length - 1 if keep is None else min(length - 1, max(0, length - keep))
    return min(matched, limit // block * block)


def shared_rows(cfg, cache: Cache, hit: int) -> Cache:
    """A cache that holds what a prefix hit of `hit` tokens brings: compressed rows, and no private state."""
    out = Cache()
    for source, latent in cache.latent.items():
        count = hit // cfg.compress_ratios[source]
        out.latent[source], out.index_k[source] = latent[:count].clone(), cache.index_k[source][:count].clone()
    return out


def prefill(
    model: Model,
    ids: list[int],
    *,
    keep: int | None = None,
    hit: int = 0,
    replay: int | None = None,
    cached: Cache | None = None,
    chunk: int | None = None,
    draft: Draft | None = None,
    image_mask=None,
    trace: dict | None = None,
):
    """(logits [rows, vocab], first position of these rows, Cache, DraftCache or None) of the prompt `ids`.

    keep: rows at the end that the consumers see (None: all). hit: tokens whose compressed rows come from `cached`, an
    earlier run of the same prefix. replay: producer rows re-run before the hit, the window by default. chunk: rows a
    forward. Logits are those of the kept new rows: the others have no meaning."""
    cfg, length = model.cfg, len(ids)
    keep_from = max(0, length - keep) if keep is not None and cfg.boundary is not None else 0
    replay = cfg.sliding_window if replay is None else replay
    start = max(0, hit - replay) if hit else 0
    if hit and (cached is None or hit >= length or (keep is not None and hit > keep_from)):
        raise ValueError(f"hit {hit}: needs a cached run, at most {length - 1} tokens, and no kept row below it")
    if hit and start and replay < cfg.sliding_window:
        raise ValueError(f"replay {replay} is shorter than the window {cfg.sliding_window}")
    cache = shared_rows(cfg, cached, hit) if hit else Cache()

    def mask_of(a, b):
        return None if image_mask is None else image_mask[a:b]

    cache.pos, cache.history = start, model.compressed_ids(ids[:start], mask_of(0, start))
    dcache, logits, at = DraftCache() if draft else None, [], start
    while at < length:
        end = min(length, at + (chunk or length))
        out, features = model.forward(
            ids[at:end],
            cache,
            mask_of(at, end),
            trace,
            visible_from=start,
            keep_from=keep_from,
            write_from=hit,
        )
        fresh = max(at, hit, keep_from) - at  # rows before it are replayed or cut off
        logits.append(out[fresh:])
        if draft and fresh < end - at:
            draft.commit(features[fresh:], torch.arange(at + fresh, end), dcache)
        at = end
    return torch.cat(logits), max(hit, keep_from), cache, dcache


def test_prompt(cfg) -> list[int]:
    g = torch.Generator().manual_seed(3)
    return torch.randint(3, cfg.vocab_size - 12, (400,), generator=g).tolist()


def depth_table(model: Model) -> list[tuple[int, int, float, float]]:
    """(replayed rows, exact depth, error of the new compressed rows, error of the logits) against a cold run."""
    cfg, ids, hit, keep, rows = model.cfg, test_prompt(model.cfg), 256, 20, []
    cold, first, cold_cache, _ = prefill(model, ids, keep=keep)
    depth = cfg.boundary * (cfg.sliding_window - 1)
    for replay in (cfg.sliding_window, depth - 2, depth - 1, depth, depth + 8, hit):
        logits, at, cache, _ = prefill(model, ids, keep=keep, hit=hit, replay=replay, cached=cold_cache)
        assert at == first and cache.pos == cold_cache.pos
        worst = 0.0
        for source in cache.latent:
            known = hit // cfg.compress_ratios[source]
            for mine, theirs in ((cache.latent, cold_cache.latent), (cache.index_k, cold_cache.index_k)):
                assert mine[source].shape == theirs[source].shape
                assert torch.equal(mine[source][:known], theirs[source][:known])
                worst = max(worst, float((mine[source][known:] - theirs[source][known:]).abs().max()))
        rows.append((replay, depth, worst, float((logits - cold).abs().max())))
    return rows


def chunk_error(model: Model) -> float:
    """How far a truncated prefill with a bounded hit moves when it is cut into chunks: nothing but rounding."""
    ids, cold = test_prompt(model.cfg), prefill(model, test_prompt(model.cfg))[2]
    options = {"keep": 20, "hit": 256, "cached": cold}
    whole = prefill(model, ids, **options)[0]
    return max(float((prefill(model, ids, chunk=n, **options)[0] - whole).abs().max()) for n in (7, 64, 139))


def golden(directory, out) -> None:
    """Writes what an engine must reproduce, in fp32 and qat (exact: a long sum whose last digit depends on the machine
    moves whole rows where it falls beside a rounding border): ids [400], and for each case of `cases` below the logits
    of the last 20 rows, the compressed rows and index keys of the first 16 groups from 256 on, and the draft made
    after the last row for its greedy token."""
    cfg, w = checkpoint.load(directory)
    token_map, _ = compressed_token_map(Path(directory) / "tokenizer.json")
    ids, hit, keep = test_prompt(cfg), 256, 20
    cases = {
        "off": {},  # every row of every layer
        "keep": {"keep": keep},  # consumers see the last 20 rows
        "bounded": {"keep": keep, "hit": hit},  # and the first 256 tokens are a hit, one window of producers re-run
        "deep": {"keep": keep, "hit": hit, "replay": cfg.boundary * (cfg.sliding_window - 1)},
    }
    tensors = {"ids": torch.tensor(ids), "hit": torch.tensor(hit), "keep": torch.tensor(keep)}
    for name in ("fp32", "qat"):
        numerics = dataclasses.replace(PRESETS[name], exact=True)
        model, draft = Model(cfg, w, numerics, token_map), Draft(cfg, w, numerics)
        cold = prefill(model, ids)[2]
        for case, options in cases.items():
            logits, _, cache, dcache = prefill(model, ids, cached=cold, draft=draft, **options)
            tokens, _, confidence = draft.propose(int(logits[-1].argmax()), dcache)
            key = f"{name}.{case}."
            tensors |= {key + "logits": logits[-keep:].clone(), key + "draft": torch.tensor(tokens)}
            tensors[key + "confidence"] = confidence
            for source in cache.latent:
                group = hit // cfg.compress_ratios[source]
                tensors[f"{key}latent.{source}"] = cache.latent[source][group : group + 16].clone()
                tensors[f"{key}index_k.{source}"] = cache.index_k[source][group : group + 16].clone()
    save_file(tensors, out)


def main(directory: str, out: str | None) -> int:
    torch.set_num_threads(1)
    if out:
        golden(directory, out)
        return 0
    cfg, w = checkpoint.load(directory, dtype=torch.float64)
    model = Model(cfg, w, Numerics(), compressed_token_map(Path(directory) / "tokenizer.json")[0])
    bad = 0
    for replay, depth, error, logit_error in depth_table(model):
        ok = error < 1e-14 if replay >= depth else error > 1e-12
        bad += not ok
        print(
            f"replay of {replay:3d} rows (exact from {depth}): compressed rows {error:.1e}, logits {logit_error:.1e}"
            f"{'' if ok else '   WRONG'}"
        )
    error = chunk_error(model)
    bad += error > 1e-13
    print(f"bounded, in chunks of 7, 64 and 139 rows: logits {error:.1e}{'' if error <= 1e-13 else '   WRONG'}")
    cases = json.loads((Path(__file__).resolve().parents[3] / "tests/golden/cases/runtime_cases.json").read_text())
    for case in cases["cases"]["prefix_hit_cap"]:
        i = case["inputs"]
        hit = hit_cap(i["matched_blocks"] * i["block"], i["prompt_len"], i["keep_tokens"] or None, i["block"])
        if hit != case["expected"]["hit_tokens"]:
            bad += 1
            print(f"hit_cap, case {case['name']}: {hit}   WRONG")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
