"""Decode speed of every way to verify drafts: none, each fixed width, scheduled, and the engine's own choice.

    python3 scripts/sweep_drafts.py [--out docs/drafts] [--concurrency 1 4 16] [--repeats 3]

Runs `deepinfer bench` on the built-in model, the ways interleaved, and writes the medians as JSON and as an SVG chart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORY = "Once upon a time there was a little fox who lived in a wood. One day the fox found a red ball. "
WAYS = {"off": {"DEEPINFER_USE_NEXTN_DECODE": "0"}}
WAYS |= {f"{n}": {"DEEPINFER_USE_NEXTN_DECODE": f"{n}", "DEEPINFER_ENABLE_MTP_VARLEN": "0"} for n in range(1, 6)}
WAYS |= {"scheduled": {"DEEPINFER_ENABLE_MTP_VARLEN": "1"}, "chosen": {}}


def measure(binary: Path, way: str, concurrency: int, tokens: int) -> float:
    """Output tokens a second of one run."""
    words = ["bench", "--json", "--prompts", concurrency, "--concurrency", concurrency, "--prompt-tokens", 40]
    words += ["--output-tokens", tokens, "--repeats", 1, "--text", STORY]
    done = subprocess.run(
        [binary, *map(str, words)], env={**os.environ, **WAYS[way]}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["decode_tokens_s"]


def chart(results: dict[int, dict[str, float]]) -> str:
    """Bars of tokens a second over those without drafts, one group a concurrency."""
    width, height, left, bottom, bar = 760, 300, 46, 40, 10
    group = (width - left - 10) / len(results)
    highest = max(v / r["off"] for r in results.values() for v in r.values()) * 1.08
    colours = ["#999999", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#e6a23c", "#2e8b57"]

    def y(value: float) -> float:
        return height - bottom - (height - bottom - 30) * value / highest

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    parts.append(f'<text x="{left}" y="16" font-size="12">decode speed over the speed without drafts</text>')
    for tick in range(int(highest) + 1):
        parts.append(f'<line x1="{left}" x2="{width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 24}" y="{y(tick) + 4:.1f}" font-size="11">{tick}</text>')
    for g, (concurrency, ways) in enumerate(results.items()):
        x0 = left + g * group + (group - len(ways) * (bar + 4)) / 2
        for i, (way, value) in enumerate(ways.items()):
            x, top = x0 + i * (bar + 4), y(value / ways["off"])
            parts.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{bar}" height="{height - bottom - top:.1f}" '
                f'fill="{colours[i]}"><title>{way}: {value:.0f} tokens/s</title></rect>'
            )
        label = f"{concurrency} together ({ways['off']:.0f} tokens/s without)"
        parts.append(f'<text x="{left + g * group + 8:.1f}" y="{height - bottom + 14}" font-size="11">{label}</text>')
    for i, way in enumerate(WAYS):
        x = left + i * 84
        parts.append(f'<rect x="{x}" y="{height - 14}" width="10" height="10" fill="{colours[i]}"/>')
        name = way if not way.isdigit() else f"width {way}"
        parts.append(f'<text x="{x + 14}" y="{height - 5}" font-size="11">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "deepinfer")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/drafts", help="without the suffix")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--output-tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    results: dict[int, dict[str, float]] = {}
    for concurrency in args.concurrency:
        runs: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(args.repeats):
            for way in WAYS:
                runs[way].append(measure(args.binary, way, concurrency, args.output_tokens))
        results[concurrency] = {way: statistics.median(values) for way, values in runs.items()}
        print(concurrency, {way: round(value, 1) for way, value in results[concurrency].items()}, flush=True)
    args.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    args.out.with_suffix(".svg").write_text(chart(results))


if __name__ == "__main__":
    main()
