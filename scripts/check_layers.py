#!/usr/bin/env python3
"""Compare the engine with the oracle layer by layer at the released widths, each layer on the engine's own input.

    deepinfer make-random --shape flash --layers 8 --experts 8 DIR
    "$(scripts/oracle/setup.sh)" scripts/check_layers.py --model DIR [--lengths 1 2 130 3000] [--backend cpu]

The engine writes the streams that enter each layer (`logits --hidden --trace`). The oracle computes layer i from the
streams that entered the engine's layer i, with the engine's chosen and candidate entries, and the result is compared
with what entered the engine's layer i + 1: so an error shows in the layer that made it and is not amplified by the
layers that follow. The head and the draft are compared the same way, from the engine's last streams and features.

    fp32    every value within 1e-5 of the largest in its row; selections equal but for scores closer than 1e-5
    vendor  at least 99 % of the values bit-equal, the rest within one bf16 step of the largest value in their row;
            selections equal but for scores within one bf16 step of the last one chosen

The oracle runs in double precision: with single sums a row of released width crosses some rounding boundary in every
third layer, and one FP8 input that moves by a step moves a quarter of the row's results by one. It decodes one layer at
a time (about 6 GB at the released widths). Outputs of the engine go to a temporary
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
from dataclasses import dataclass, field
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


class Comparison:
    """One run of the engine against the oracle."""

    def __init__(self, report: Report, model: Path, name: str, backend: str | None):
        self.report, self.model, self.name, self.backend = report, model, name, backend
        self.cfg, self.w = checkpoint.load(model, dtype=torch.float64, keep_all=False)
        tokenizer = model / "tokenizer.json"
        self.token_map = compressed_token_map(tokenizer)[0] if self.cfg.engram_layer_ids else None

    def run_engine(self, ids: list[int], scratch: Path, threads: int) -> Path:
        (scratch / "ids.json").write_text(json.dumps([ids]))
        out = scratch / "out.safetensors"
        command = [
            binary(),
            "logits",
            "--model",
            str(self.model),
            "--ids",
            str(scratch / "ids.json"),
            "--out",
            str(out),
        ]
        command += ["--numerics", self.name, "--hidden", "--trace", "--threads", str(threads)]
        command += ["--backend", self.backend] if self.backend else []
        start = time.monotonic()
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"{' '.join(command[1:])}: exit code {run.returncode}\n{run.stderr[-2000:]}")
        print(f"     engine: {len(ids)} tokens in {time.monotonic() - start:.1f} s", flush=True)
        return out

    def compare_rows(self, label: str, mine: torch.Tensor, want: torch.Tensor) -> None:
        """mine, want: [rows, values] of one layer's output."""
        delta, top = (mine - want).abs(), want.abs().amax(-1, keepdim=True)
        if not bool(mine.isfinite().all()):
            self.report.check(label, False, "not finite")
        elif self.name == "vendor":
            share = float((delta == 0).double().mean())
            steps = float((delta / bf16_step(top)).max())
            ok = share >= 0.99 and steps <= 1
            self.report.check(
                label, ok, f"{100 * share:.3f} % of the values equal, the rest within {steps:.2f} bf16 steps"
            )
        else:
            self.report.at_most(label, float((delta / top.clamp_min(1e-30)).max()), 1e-5)

    def run(self, length: int, scratch: Path, threads: int) -> None:
        cfg, r = self.cfg, random.Random(length)
        ids = [r.randrange(3, cfg.vocab_size - 16) for _ in range(length)]
        if length > 40:
            ids[-20:-8] = ids[8:20]  # an n-gram that occurs twice
        here = f"{self.name}{', ' + self.backend if self.backend else ''}, {length} tokens"
        file = safe_open(self.run_engine(ids, scratch, threads), framework="pt")
        names = set(file.keys())
        traced = {n: file.get_tensor(n) for n in names if n.startswith(("chosen.", "candidates."))}
        vendor = self.name == "vendor"

        def tolerance(top: float) -> float:
            return float(bf16_step(torch.tensor(top))) if vendor else 1e-5 * max(top, 1.0)

        model = Forced(cfg, self.w, PRESETS[self.name], self.token_map, engine=traced, tolerance=tolerance)
        cache = Cache()
        whole = model.begin(ids, cache)
        if cfg.engram_layer_ids:
            same = torch.equal(file.get_tensor("engram.0").reshape(whole.engram_rows.shape), whole.engram_rows)
            self.report.check(f"{here}: Engram rows", same, "equal" if same else "differ")
        chunks = []
        for at in range(0, length, ROWS):
            rows = whole.engram_rows[:, at : at + ROWS] if whole.engram_rows is not None else None
            chunks.append(Chunk(whole.pos[at : at + ROWS], engram_rows=rows))
        h, pre = model.embed(ids)
        entering = file.get_tensor("hidden.0.0").reshape(h.shape).double()
        self.report.equal(f"{here}: streams entering layer 0", difference(entering, h), 0.0)
        features = []
        for i in range(cfg.num_hidden_layers):
            if f"pre.0.{i}" in names:
                pre = file.get_tensor(f"pre.0.{i}").double()
            out, next_pre, taps = torch.empty_like(entering), torch.empty_like(pre), []
            for chunk in chunks:
                rows = slice(int(chunk.pos[0]), int(chunk.pos[-1]) + 1)
                out[rows], next_pre[rows], tap = model.layer(i, entering[rows], pre[rows], chunk, cache)
                if tap is not None:
                    taps.append(tap)
            if taps:
                features.append(torch.cat(taps))
            if cfg.compress_ratios[i]:  # earlier chunks know the entries of later ones from here on: none is visible
                for chunk in chunks:
                    for key, mask in chunk.shared.items():
                        width = length // cfg.compress_ratios[i]
                        chunk.shared[key] = torch.nn.functional.pad(mask, (0, max(0, width - mask.shape[-1])))
            entering, pre = file.get_tensor(f"hidden.0.{i + 1}").reshape(out.shape).double(), next_pre
            self.compare_rows(f"{here}: layer {i} ({kind_of(cfg, i)})", entering.flatten(1), out.flatten(1))
        found = model.found
        self.report.check(
            f"{here}: selections",
            not found.unexplained,
            f"{found.rows} queries chose among near-equal scores"
            + (f", unexplained (layer, position, gap): {found.unexplained[:4]}" if found.unexplained else ""),
        )
        tail = slice(max(0, length - ROWS), length)
        mine, want = file.get_tensor("logits.0")[tail], model.head(entering[tail], pre[tail])
        limit = 4e-3 if vendor else 1e-5
        gap = float(((mine - want).abs() / want.abs().amax(-1, keepdim=True)).max())
        self.report.at_most(f"{here}: head", gap, limit)
        if cfg.num_nextn_predict_layers:
            self.draft(here, file, torch.cat(features, -1), int(mine[-1].argmax()), whole.pos)

    def draft(self, here: str, file, features: torch.Tensor, token: int, pos: torch.Tensor) -> None:
        """The proposal after the last position, from the engine's features: tokens, and confidences within 1e-5."""
        tail = slice(max(0, len(pos) - ROWS), len(pos))
        model, cache = Draft(self.cfg, self.w, PRESETS[self.name]), DraftCache()
        model.commit(features[tail], pos[tail], cache)
        tokens, lines, confidence = model.propose(token, cache)
        mine = file.get_tensor("draft.0").tolist()
        two = lines.topk(2).values
        margin = float((two[:, 0] - two[:, 1]).min())
        near = margin < (1e-4 if self.name != "vendor" else 0.05)
        self.report.check(
            f"{here}: draft tokens", mine == tokens or near, f"{mine} against {tokens}, margin {margin:.3g}"
        )
        if mine == tokens:
            scale = float(confidence.abs().max())
            gap = difference(file.get_tensor("confidence.0"), confidence) / max(scale, 1.0)
            self.report.at_most(f"{here}: draft confidences", gap, 1e-5 if self.name != "vendor" else 0.02)


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
    for name in a.numerics:
        comparison = Comparison(report, a.model, name, a.backend if name == "vendor" else None)
        for length in a.lengths:
            with tempfile.TemporaryDirectory(prefix="layers-", dir=a.scratch) as folder:
                comparison.run(length, Path(folder), a.threads)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
