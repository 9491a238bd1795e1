"""The engine's side of a comparison: runs `deepinfer logits`, reads what it wrote, prints a line a check.

Output names per sequence i: logits.i [len, vocab], draft.i, confidence.i, hidden.i.L [len, streams, width] for the
streams that enter layer L (L = number of layers: those that leave the last), chosen.i.L and candidates.i.L
[len, entries], engram.i [layers, len, columns].
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "golden" / "random-small"
TINY = ROOT / "models" / "tiny"


def binary() -> str:
    """The engine's command line: $DEEPINFER, or the one the build puts at the root."""
    path = os.environ.get("DEEPINFER", str(ROOT / "deepinfer"))
    if not os.access(path, os.X_OK):
        raise SystemExit(f"no engine at {path}: build it, or name it in DEEPINFER")
    return path


def logits(model, sequences, *options: str, threads: int = 1, timeout: float = 3600) -> dict[str, torch.Tensor]:
    """What `deepinfer logits` writes for `sequences`, each a list of ids or {"ids": [], "image": [[from, to)]}."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        ids, out = Path(folder) / "ids.json", Path(folder) / "out.safetensors"
        ids.write_text(json.dumps(sequences))
        command = [binary(), "logits", "--model", str(model), "--ids", str(ids), "--out", str(out)]
        command += ["--threads", str(threads), *options]
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        if run.returncode:
            raise RuntimeError(f"{' '.join(command[1:])}: exit code {run.returncode}\n{run.stderr.strip()[-2000:]}")
        return load_file(out)


def difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest absolute difference; infinite when shapes differ or a value is not finite."""
    if mine.shape != theirs.shape or not mine.isfinite().all():
        return float("inf")
    return float((mine.double() - theirs.double()).abs().max()) if mine.numel() else 0.0


def masks_differ(mine: torch.Tensor, theirs: torch.Tensor) -> int:
    """Rows of two [rows, entries] masks that do not choose the same entries; a missing column is not chosen."""
    width = max(mine.shape[-1], theirs.shape[-1])
    a, b = (torch.nn.functional.pad(m.bool(), (0, width - m.shape[-1])) for m in (mine, theirs))
    return int((a != b).any(-1).sum()) if a.shape == b.shape else max(len(a), len(b))


class Report:
    """One line a check; `failures` becomes the exit code."""

    def __init__(self, quiet: bool = False):
        self.failures, self.checks, self.quiet, self.start = 0, 0, quiet, time.monotonic()

    def check(self, label: str, ok: bool, figure) -> bool:
        self.checks += 1
        self.failures += not ok
        if not ok or not self.quiet:
            value = f"{figure:.3g}" if isinstance(figure, float) else figure
            print(f"{'ok  ' if ok else 'FAIL'} {label}: {value}", flush=True)
        return ok

    def at_most(self, label: str, value: float, limit: float) -> bool:
        return self.check(f"{label} (at most {limit:g})", value <= limit, value)

    def equal(self, label: str, mine, theirs) -> bool:
        ok = mine == theirs
        return self.check(label, ok, "equal" if ok else f"{mine} against {theirs}")

    def exit_code(self) -> int:
        spent = time.monotonic() - self.start
        print(f"{self.checks} checks, {self.failures} failed, {spent:.0f} s")
        return 1 if self.failures else 0
