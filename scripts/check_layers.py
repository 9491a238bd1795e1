#!/usr/bin/env python3
"""Compare the engine with the oracle layer by layer at the released widths, each layer on the engine's own input.

    deepinfer make-random --shape flash --layers 8 --experts 8 DIR
    "$(scripts/oracle/setup.sh)" scripts/check_layers.py --model DIR [--lengths 1 2 130 3000] [--backend cpu]

The engine writes the streams that enter each layer (`logits --hidden --trace`). The oracle computes layer i from the
streams that entered the engine's layer i, with the engine's chosen and candidate entries, and the result is compared
with what entered the engine's layer i + 1: so an error shows in the layer that made it and is not amplified by the
layers that follow. The head and the draft are compared the same way, from the engine's last streams and features.

    fp32    every value within 1e-5 of the largest in its row; selections equal but for scores closer than 1e-5
    vendor  at least 99 % of a layer's values bit-equal, the rest within one bf16 step of the largest in its row;
            selections equal but for scores that are equal when rounded

Both sides make long sums and exponentials in double and round each once to fp32, so that nothing is left to the order
of addition or to a library's last digit. That is no detail: with the fp32 sums of PyTorch a sum next to a rounding
boundary falls either way, one FP8 input that takes another code moves a quarter of the row's results by one step, and
one such window key moves every row that sees it. In a window-only layer of the released widths the oracle in single
precision moves 84 of 130 rows against itself in double.

The oracle decodes one layer at a time (about 6 GB at the released widths). Outputs of the engine go to a temporary
folder (--scratch): 80 KB a token and layer.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "oracle"))
import torch
from dsv41 import checkpoint
from dsv41.config import Config
from dsv41.dspark import Draft, DraftCache
from dsv41.engram import compressed_token_map
from dsv41.model import PRESETS, Cache, Chunk, Model
from safetensors import safe_open

from engine import Report, binary, difference

ROWS = 256  # rows the oracle takes at a time


@dataclass
class Selections:
    """How often the engine chose other entries than the oracle, and whether a tie explains all of it."""

    rows: int = 0
    unexplained: list = field(default_factory=list)


class Forced(Model):
    """The oracle with the engine's selections: it makes its own, compares, and goes on with the engine's."""

    def __init__(self, *args, engine: dict, tolerance):
        super().__init__(*args)
        self.engine, self.tolerance, self.found = engine, tolerance, Selections()

    def theirs(self, kind: str, layer: int, chunk: Chunk, width: int) -> torch.Tensor:
        mask = self.engine[f"{kind}.0.{layer}"][chunk.pos[0] : chunk.pos[-1] + 1].bool()
        return torch.nn.functional.pad(mask, (0, max(0, width - mask.shape[-1])))[:, :width]

    def select(self, i: int, x, latent, chunk: Chunk, cache: Cache):
        chunk.trace = {}
        mine = super().select(i, x, latent, chunk, cache)
        score, chunk.trace = chunk.trace[f"layers.{i}.index_score"], None
        chosen = self.theirs("chosen", i, chunk, mine.shape[-1])
        self.judge(i, chunk, score, mine, chosen)
        if i == self.cfg.candidate_source_layer_id:
            candidates, size = self.theirs("candidates", i, chunk, mine.shape[-1]), self.cfg.candidate_block_size

            def blocks(values):
                """[rows, blocks]: the largest of each block."""
                return (
                    torch.nn.functional.pad(values, (0, -values.shape[-1] % size), value=-1e30)
                    .unflatten(-1, (-1, size))
                    .amax(-1)
                )

            kept, theirs = (blocks(m.float()) > 0 for m in (chunk.shared["candidates"], candidates))
            self.judge(i, chunk, blocks(score), kept, theirs)
            chunk.shared["candidates"] = candidates
        return chosen

    def judge(self, i: int, chunk: Chunk, score, mine, theirs) -> None:
        """Counts the rows on which two choices [rows, n] differ, and those where no near tie of `score` explains it."""
        for row in (mine != theirs).any(-1).nonzero().flatten().tolist():
            self.found.rows += 1
            gap = math.inf
            if int(mine[row].sum()) == int(theirs[row].sum()) > 0:
                # between the weakest that one side took and the strongest that it left for the other's sake
                taken, left = score[row][mine[row] & ~theirs[row]], score[row][theirs[row] & ~mine[row]]
                gap = float(taken.max() - left.min())
            top = float(score[row][mine[row]].abs().max()) if mine[row].any() else 0.0
            if not gap <= self.tolerance(top):
                self.found.unexplained.append((i, int(chunk.pos[row]), gap))


def bf16_step(magnitude: torch.Tensor) -> torch.Tensor:
    """The distance of neighbouring bf16 values at `magnitude`."""
    return torch.ldexp(torch.ones_like(magnitude), torch.frexp(magnitude.clamp_min(1e-30)).exponent - 8)


def kind_of(cfg: Config, i: int) -> str:
    ratio = cfg.compress_ratios[i]
    parts = [f"ratio {ratio}"]
    if ratio:
        source, chooser = i in cfg.kv_source_layer_ids, i in cfg.index_source_layer_ids
        parts.append("source" if source else "chooser" if chooser else "reuse")
    if i == cfg.candidate_source_layer_id:
        parts.append("candidates")
    if i in cfg.engram_layer_ids:
        parts.append("Engram")
    return ", ".join(parts)


class Side:
    """The oracle of one run in one precision: one cache, and the chunks that its layers hand selections through."""

    def __init__(self, cfg: Config, w, name: str, token_map, ids: list[int], engine: dict):
        vendor = name == "vendor"

        def tolerance(top: float) -> float:
            return 0.0 if vendor else 1e-5 * max(top, 1.0)

        numerics = replace(PRESETS[name], exact=True)
        self.model = Forced(cfg, w, numerics, token_map, engine=engine, tolerance=tolerance)
        self.draft = Draft(cfg, w, numerics)
        self.cache, self.chunks, self.features, self.dtype = Cache(), [], [], w.dtype
        self.whole = self.model.begin(ids, self.cache)
        for at in range(0, len(ids), ROWS):
            rows = self.whole.engram_rows[:, at : at + ROWS] if self.whole.engram_rows is not None else None
            self.chunks.append(Chunk(self.whole.pos[at : at + ROWS], engram_rows=rows))

    def layer(self, i: int, h: torch.Tensor, pre: torch.Tensor):
        """Streams [n, m, d] and fold weights [n, m] that layer i makes of these."""
        h, pre, taps = h.to(self.dtype), pre.to(self.dtype), []
        out, next_pre = torch.empty_like(h), torch.empty_like(pre)
        for chunk in self.chunks:
            rows = slice(int(chunk.pos[0]), int(chunk.pos[-1]) + 1)
            out[rows], next_pre[rows], tap = self.model.layer(i, h[rows], pre[rows], chunk, self.cache)
            taps += [] if tap is None else [tap]
        self.features += [torch.cat(taps)] if taps else []
        ratio = self.model.cfg.compress_ratios[i]
        for chunk in self.chunks if ratio else []:  # later entries exist from here on, invisible to earlier rows
            for key, mask in chunk.shared.items():
                width = len(h) // ratio
                chunk.shared[key] = torch.nn.functional.pad(mask, (0, max(0, width - mask.shape[-1])))
        return out, next_pre

    def propose(self, token: int):
        """The draft after the last position, from the engine's features."""
        cache, tail = DraftCache(), slice(max(0, len(self.whole.pos) - ROWS), None)
        self.draft.commit(torch.cat(self.features, -1)[tail], self.whole.pos[tail], cache)
        return self.draft.propose(token, cache)


class Run:
    """One prompt through the engine, and through the oracle one layer at a time."""

    def __init__(self, report: Report, here: str, out: Path, cfg: Config, ids: list[int], side: Side, name: str):
        self.report, self.here, self.cfg, self.side = report, here, cfg, side
        self.file, self.ids = safe_open(out, framework="pt"), ids
        self.vendor = name == "vendor"
        rows = side.whole.engram_rows
        if rows is not None:
            same = torch.equal(self.tensor("engram.0").reshape(rows.shape), rows)
            report.check(f"{here}: Engram rows", same, "equal" if same else "differ")
        h, self.pre = side.model.embed(ids)
        self.entering = self.tensor("hidden.0.0").reshape(h.shape)
        report.equal(f"{here}: streams entering layer 0", difference(self.entering.to(h.dtype), h), 0.0)

    def tensor(self, name: str) -> torch.Tensor:
        return self.file.get_tensor(name)

    def layer(self, i: int) -> None:
        pre = self.tensor(f"pre.0.{i}")
        made = self.side.layer(i, self.entering, pre)[0].flatten(1)
        self.entering = self.tensor(f"hidden.0.{i + 1}").reshape(self.entering.shape)
        self.compare(f"{self.here}: layer {i} ({kind_of(self.cfg, i)})", self.entering.flatten(1), made)

    def compare(self, label: str, mine: torch.Tensor, want: torch.Tensor) -> None:
        """mine: [rows, values] of the engine; want: the same of the oracle."""
        top = want.abs().amax(-1, keepdim=True)
        delta = (mine.double() - want).abs()
        if not bool(mine.isfinite().all()):
            self.report.check(label, False, "not finite")
        elif not self.vendor:
            self.report.at_most(label, float((delta / top.clamp_min(1e-30)).max()), 1e-5)
        else:
            share, steps = float((mine.double() == want).double().mean()), float((delta / bf16_step(top)).max())
            figure = f"{100 * share:.4f} % equal, the rest within {steps:.2f} steps"
            self.report.check(label, share >= 0.99 and steps <= 1, figure)

    def finish(self) -> None:
        side, last = self.side, self.cfg.num_hidden_layers
        found = side.model.found
        figure = f"{found.rows} queries chose among near-equal scores"
        figure += f", unexplained (layer, position, gap): {found.unexplained[:4]}" if found.unexplained else ""
        self.report.check(f"{self.here}: selections", not found.unexplained, figure)
        tail = slice(max(0, len(self.ids) - ROWS), None)
        h, pre = self.entering[tail].to(side.dtype), self.tensor(f"pre.0.{last}")[tail].to(side.dtype)
        mine, want = self.tensor("logits.0")[tail], side.model.head(h, pre)
        gap = float(((mine - want).abs() / want.abs().amax(-1, keepdim=True)).max())
        self.report.at_most(f"{self.here}: head", gap, 4e-3 if self.vendor else 1e-5)
        if not self.cfg.num_nextn_predict_layers:
            return
        token, drafted = int(mine[-1].argmax()), self.tensor("draft.0").tolist()
        tokens, scores, confidence = side.propose(token)
        two = scores.topk(2).values
        margin = float((two[:, 0] - two[:, 1]).min())
        ok = drafted == tokens or margin < (0.05 if self.vendor else 1e-4)
        self.report.check(f"{self.here}: draft tokens", ok, f"{drafted} against {tokens}, margin {margin:.3g}")
        if tokens == drafted:
            gap = difference(self.tensor("confidence.0"), confidence) / max(float(confidence.abs().max()), 1.0)
            self.report.at_most(f"{self.here}: draft confidences", gap, 0.03 if self.vendor else 1e-5)


def run_engine(model: Path, ids: list[int], scratch: Path, options: list[str]) -> Path:
    """Where `deepinfer logits` put its output."""
    (scratch / "ids.json").write_text(json.dumps([ids]))
    out = scratch / "out.safetensors"
    files = ["--model", str(model), "--ids", str(scratch / "ids.json"), "--out", str(out)]
    start = time.monotonic()
    run = subprocess.run([binary(), "logits", *files, "--hidden", "--trace", *options], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"deepinfer logits: exit code {run.returncode}\n{run.stderr[-2000:]}")
    print(f"     engine: {len(ids)} tokens in {time.monotonic() - start:.1f} s", flush=True)
    return out


def prompt_of(length: int, vocab_size: int) -> list[int]:
    r = random.Random(length)
    ids = [r.randrange(3, vocab_size - 16) for _ in range(length)]
    if length > 40:
        ids[-20:-8] = ids[8:20]  # an n-gram that occurs twice
    return ids


def compare(
    report: Report, model: Path, name: str, backend: str | None, prompts: list[list[int]], threads: int, scratch: Path
) -> None:
    """All prompts together, so that a layer is decoded once."""
    cfg, w = checkpoint.load(model, keep_all=False)
    token_map = compressed_token_map(model / "tokenizer.json")[0] if cfg.engram_layer_ids else None
    options = ["--numerics", name, "--threads", str(threads)] + (["--backend", backend] if backend else [])
    runs = []
    for ids in prompts:
        folder = scratch / f"{name}-{len(ids)}"
        folder.mkdir()
        out = run_engine(model, ids, folder, options)
        with safe_open(out, framework="pt") as file:
            traced = {n: file.get_tensor(n) for n in file.keys() if n.startswith(("chosen.", "candidates."))}
        here = f"{name}{', ' + backend if backend else ''}, {len(ids)} tokens"
        runs.append(Run(report, here, out, cfg, ids, Side(cfg, w, name, token_map, ids, traced), name))
    for i in range(cfg.num_hidden_layers):
        for run in runs:
            run.layer(i)
    for run in runs:
        run.finish()


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=Path, required=True)
    ap.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 130, 3000])
    ap.add_argument("--numerics", nargs="+", choices=["fp32", "qat", "vendor"], default=["fp32", "vendor"])
    ap.add_argument("--backend", help="backend for vendor (fp32 and qat imply ref)")
    ap.add_argument("--scratch", help="folder for the engine's outputs")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    report = Report()
    vocab_size = Config.load(a.model).vocab_size
    prompts = [prompt_of(length, vocab_size) for length in a.lengths]
    with tempfile.TemporaryDirectory(prefix="layers-", dir=a.scratch) as folder:
        for name in a.numerics:
            backend = a.backend if name == "vendor" else None
            compare(report, a.model, name, backend, prompts, a.threads, Path(folder))
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
