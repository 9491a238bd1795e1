#!/usr/bin/env python3
"""The oracle's own speed: the denominator of "how many times faster than the Python reference".

    "$(scripts/oracle/setup.sh)" scripts/bench_reference.py [--model models/tiny] [--prompt 512] [--generate 64]

Prints one JSON record: prefill and decode tokens a second, by wall clock and by CPU time of this process (the figure
that holds on a busy machine, for one thread). Decoding is greedy, one token a forward, without drafts; `draft_s` is
what one proposal with its commit takes, in CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "oracle"))
import torch
from dsv41 import checkpoint
from dsv41.dspark import Draft, DraftCache
from dsv41.engram import compressed_token_map
from dsv41.model import PRESETS, Cache, Model

from engine import TINY


class Clock:
    """Wall and CPU seconds of a `with` block."""

    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exc):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu

    def rate(self, count: int) -> dict[str, float]:
        return {"per_wall_s": round(count / self.wall, 2), "per_cpu_s": round(count / self.cpu, 2)}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=Path, default=TINY)
    ap.add_argument("--numerics", choices=sorted(PRESETS), default="vendor")
    ap.add_argument("--prompt", type=int, default=512)
    ap.add_argument("--generate", type=int, default=64)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    cfg, w = checkpoint.load(a.model)
    token_map = compressed_token_map(a.model / "tokenizer.json")[0] if cfg.engram_layer_ids else None
    model, draft = Model(cfg, w, PRESETS[a.numerics], token_map), Draft(cfg, w, PRESETS[a.numerics])
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(3, cfg.vocab_size - 64, (a.prompt,), generator=g).tolist()
    model.forward(ids[:8], Cache())  # decodes the weights
    cache, dcache = Cache(), DraftCache()
    with Clock() as prefill:
        logits, features = model.forward(ids, cache)
    token = int(logits[-1].argmax())
    record = {"model": a.model.name, "numerics": a.numerics, "threads": a.threads, "torch": torch.__version__}
    if cfg.num_nextn_predict_layers:
        draft.commit(features, torch.arange(a.prompt), dcache)
        draft.propose(token, dcache)  # decodes the draft's weights
        with Clock() as proposal:
            draft.commit(features[-1:], torch.tensor([a.prompt]), dcache)
            draft.propose(token, dcache)
        record["draft_s"] = round(proposal.cpu, 4)
    with Clock() as decode:
        for _ in range(a.generate):
            token = int(model.forward([token], cache)[0][0].argmax())
    record |= {"prompt": a.prompt, "generate": a.generate}
    record |= {"prefill_tok": prefill.rate(a.prompt), "decode_tok": decode.rate(a.generate)}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
