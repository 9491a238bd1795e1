"""The sweep of examples/, a short one of each role."""

from __future__ import annotations

import json
import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from command import BINARY, ROOT

SVG = "{http://www.w3.org/2000/svg}"


def sweep(out: Path, role: str, *options: object) -> dict[str, Any]:
    """What a sweep wrote as JSON; its chart must show every point and name every series."""
    words = [ROOT / "examples/sweep/run_sweep.sh", "--role", role, "--out", out, "--repeats", 1, *options]
    environment = {**os.environ, "DI_BINARY": str(BINARY)}
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads((out / f"{role}.json").read_text())
    drawing = ET.parse(out / f"{role}.svg").getroot()
    names = {point["series"] for point in result["points"]}
    assert names <= {text.text for text in drawing.iter(f"{SVG}text")}
    assert len(list(drawing.iter(f"{SVG}circle"))) == len(result["points"]) + len(names)  # the legend's
    return result


def test_prefill_counts_computed_tokens(tmp_path: Path) -> None:
    points = sweep(tmp_path, "prefill", "--input-tokens", 20, 50, "--concurrency", 1, 3)["points"]
    assert [(p["input_tokens"], p["concurrency"]) for p in points] == [(20, 1), (20, 3), (50, 1), (50, 3)]
    for p in points:
        assert p["y"] * p["x"] / 1000 == pytest.approx(p["input_tokens"] * p["concurrency"])


def test_decode_divides_by_users_and_by_devices(tmp_path: Path) -> None:
    load = ("--shape", "tiny", "--input-tokens", 20, "--output-tokens", 10, "--concurrency", 2, "--devices", 4)
    (point,) = sweep(tmp_path, "decode", *load)["points"]
    (run,) = point["runs"]
    assert point["x"] == run["decode_tokens_s"] / 2 and point["y"] == run["decode_tokens_s"] / 4


def test_drafts_compares_every_way(tmp_path: Path) -> None:
    load = ("--concurrency", 2, "--output-tokens", 30, "--mean-tokens", 3.51)
    result = sweep(tmp_path, "drafts", *load)
    points = {p["series"]: p for p in result["points"]}
    assert list(points) == ["off", *(f"width {n}" for n in range(1, 6)), "scheduled", "chosen"]
    assert points["off"]["y"] == 1 and points["off"]["runs"][0]["draft_acceptance"] == 0
    speed = {name: p["runs"][0]["decode_tokens_s"] for name, p in points.items()}
    best = max(value for name, value in speed.items() if name != "chosen")
    assert result["chosen_over_best"] == {"2": speed["chosen"] / best}
    # Simulated drafts bring the tokens that were asked for, as far as so short a run can tell.
    run = points["width 5"]["runs"][0]
    assert 1.5 < run["tokens_step"] / 2 < 6
