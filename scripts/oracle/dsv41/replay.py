"""Prefill with a prefix hit, replayed windows and a truncated consumer region (spec/replay.md, spec/serving.md 2.4).

    positions      0 ............ H-R ........ H ............ L-K ........ L
    compressed     cached         cached       new            new
    producers      -              replayed     computed       computed
    consumers      -              -            -              computed

`prefill` is the oracle of all of it, in the `mask` form of model.py: K = keep, H = hit, R = replay. R = window is the
bounded replay; R >= producers * (window - 1) gives the rows of a cold run (deep replay); R < window is refused.

    python -m dsv41.replay CHECKPOINT        the table of spec/serving.md 2.4, in double precision
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from . import checkpoint
from .dspark import Draft, DraftCache
from .engram import compressed_token_map
from .model import Cache, Model, Numerics


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


def depth_table(directory) -> list[tuple[int, int, float, float]]:
    """(replayed rows, exact depth, error of the new compressed rows, error of the logits) against a cold run."""
    torch.set_num_threads(1)
    cfg, w = checkpoint.load(directory, dtype=torch.float64)
    token_map, _ = compressed_token_map(Path(directory) / "tokenizer.json")
    model = Model(cfg, w, Numerics(), token_map)
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(3, cfg.vocab_size, (400,), generator=g).tolist()
    hit, keep, rows = 256, 20, []
    cold, first, cold_cache, _ = prefill(model, ids, keep=keep)
    depth = cfg.boundary * (cfg.sliding_window - 1)
    for replay in (cfg.sliding_window, depth - 2, depth - 1, depth, depth + 8, hit):
        logits, at, cache, _ = prefill(model, ids, keep=keep, hit=hit, replay=replay, cached=cold_cache)
        assert at == first and cache.pos == cold_cache.pos
        worst = 0.0
        for source, latent in cache.latent.items():
            known = hit // cfg.compress_ratios[source]
            for mine, theirs in (
                (latent, cold_cache.latent[source]),
                (cache.index_k[source], cold_cache.index_k[source]),
            ):
                assert mine.shape == theirs.shape and torch.equal(mine[:known], theirs[:known])
                worst = max(worst, float((mine[known:] - theirs[known:]).abs().max()))
        rows.append((replay, depth, worst, float((logits - cold).abs().max())))
    return rows


def main(directory: str) -> int:
    bad = 0
    for replay, depth, error, logit_error in depth_table(directory):
        exact = replay >= depth
        ok = error < 1e-14 if exact else error > 1e-12
        bad += not ok
        print(
            f"replay of {replay:3d} rows (exact from {depth}): compressed rows {error:.1e}, logits {logit_error:.1e}"
            f"{'' if ok else '   WRONG'}"
        )
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
