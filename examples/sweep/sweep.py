"""Speed of the engine over a grid of loads, as JSON and as an SVG chart.

    examples/sweep/run_sweep.sh --role prefill     input tokens/s against latency, a line for each prompt length
    examples/sweep/run_sweep.sh --role decode      output tokens/s of a device against tokens/s of a user
    examples/sweep/run_sweep.sh --role drafts      every way to verify drafts, over the speed without

Each point is one `deepinfer bench` with as many requests as run together (or `--waves` times as many) and without the
prefix cache, so that every input token is computed. The whole grid is run `--repeats` times, in another order each
time, and medians are taken.
The weights are the built-in model's, those in `--model`, or generated: `--shape flash --layers 8 --experts 24`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import chart

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("DI_BINARY", ROOT / "deepinfer"))
STORY = "Once upon a time there was a little fox who lived in a wood. One day the fox found a red ball. "
WAYS = {"off": {"DEEPINFER_USE_NEXTN_DECODE": "0"}}
WAYS |= {f"width {n}": {"DEEPINFER_USE_NEXTN_DECODE": f"{n}", "DEEPINFER_ENABLE_MTP_VARLEN": "0"} for n in range(1, 6)}
WAYS |= {"scheduled": {"DEEPINFER_ENABLE_MTP_VARLEN": "1"}, "chosen": {}}


@dataclass
class Point:
    """A load, and what was measured of it: one dictionary of `deepinfer bench --json` a repeat."""

    series: str
    concurrency: int
    input_tokens: int
    output_tokens: int
    environment: dict[str, str] = field(default_factory=dict)
    runs: list[dict[str, float]] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(run[name] for run in self.runs)


@dataclass
class Chart:
    title: str
    x_label: str
    y_label: str
    place: Callable[[Point], tuple[float, float]]
    is_log: bool = False


def prefill(args: argparse.Namespace) -> tuple[list[Point], Chart]:
    loads = [(n, c) for n in args.input_tokens or [128, 512, 2048] for c in args.concurrency or [1, 2, 4, 8, 16]]
    points = [Point(f"{n} tokens", c, n, 2) for n, c in loads]

    def place(p: Point) -> tuple[float, float]:
        speed = p.median("prefill_tokens_s")
        return 1000 * p.concurrency * args.waves * p.input_tokens / speed, speed / args.devices

    return points, Chart("prefill", "time to the last first token, ms", "input tokens/s a device", place)


def decode(args: argparse.Namespace) -> tuple[list[Point], Chart]:
    loads = [(n, c) for n in args.input_tokens or [64, 1024] for c in args.concurrency or [1, 2, 4, 8, 16, 32, 64]]
    points = [Point(f"after {n} tokens", c, n, args.output_tokens) for n, c in loads]

    def place(p: Point) -> tuple[float, float]:
        speed = p.median("decode_tokens_s")
        return speed / p.concurrency, speed / args.devices

    return points, Chart("decode", "tokens/s a user", "output tokens/s a device", place)


def drafts(args: argparse.Namespace) -> tuple[list[Point], Chart]:
    (input_tokens,) = args.input_tokens or [40]
    loads = [(way, c) for way in args.ways for c in args.concurrency or [1, 4, 16, 64]]
    points = [Point(way, c, input_tokens, args.output_tokens, WAYS[way]) for way, c in loads]

    def place(p: Point) -> tuple[float, float]:
        off = next(other for other in points if other.series == "off" and other.concurrency == p.concurrency)
        return p.concurrency, p.median("decode_tokens_s") / off.median("decode_tokens_s")

    return points, Chart("ways to verify drafts", "sequences", "decode speed over that without drafts", place, True)


ROLES = {"prefill": prefill, "decode": decode, "drafts": drafts}


def model_words(args: argparse.Namespace) -> list[str]:
    """The options of `deepinfer bench` that name the weights, which are generated if need be."""
    if not args.shape:
        return ["--model", str(args.model)] if args.model else []
    sizes = [word for name in ("layers", "experts") if (n := getattr(args, name)) for word in (f"--{name}", str(n))]
    place = args.out / "-".join([args.shape, *(word.lstrip("-") for word in sizes)])
    if not place.exists():
        subprocess.run([BINARY, "make-random", "--shape", args.shape, "--out", place, *sizes], check=True)
    return ["--model", str(place)]


def acceptance_words(args: argparse.Namespace) -> list[str]:
    if not args.mean_tokens:
        return []
    file = args.out / f"acceptance-{args.mean_tokens}.json"
    file.write_text(json.dumps({"mean_tokens": args.mean_tokens}) + "\n")
    return ["--acceptance", str(file)]


def measure(p: Point, words: list[str], waves: int) -> dict[str, float]:
    load = {"prompts": p.concurrency * waves, "concurrency": p.concurrency, "repeats": 1}
    load |= {"prompt-tokens": p.input_tokens, "output-tokens": p.output_tokens}
    options = [word for name, value in load.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, **p.environment}
    done = subprocess.run(
        [BINARY, "bench", "--json", *options, *words], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def chosen_over_best(points: list[Point]) -> dict[int, float]:
    """By concurrency: the engine's own choice over the way that did best against it, within the same repeat."""
    ratios: dict[int, float] = {}
    for own in (p for p in points if p.series == "chosen"):
        others = [p for p in points if p.concurrency == own.concurrency and p is not own]
        medians = []
        for other in others:
            pairs = zip(own.runs, other.runs, strict=True)
            medians.append(statistics.median(a["decode_tokens_s"] / b["decode_tokens_s"] for a, b in pairs))
        ratios[own.concurrency] = min(medians)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=ROLES, default="decode")
    parser.add_argument("--out", type=Path, default=ROOT / "build/sweep", help="directory of what is written")
    parser.add_argument("--model", type=Path, help="default: the built-in model")
    parser.add_argument("--shape", choices=["tiny", "bench", "flash"], help="generate weights of this shape, once")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--experts", type=int)
    parser.add_argument("--concurrency", type=int, nargs="+", help="requests that run together")
    parser.add_argument("--input-tokens", type=int, nargs="+", help="prompt lengths")
    parser.add_argument("--output-tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--waves", type=int, default=1, help="requests for each place among those that run together")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS), help="of --role drafts; off among them")
    parser.add_argument("--devices", type=int, default=1, help="devices of the engine; a machine without a GPU is one")
    parser.add_argument("--random", action="store_true", help="prompts of random ids instead of a text")
    parser.add_argument("--mean-tokens", type=float, help="simulate drafts that emit so many tokens a round")
    args, bench_words = parser.parse_known_args()
    args.out.mkdir(parents=True, exist_ok=True)
    words = [*model_words(args), *acceptance_words(args), *bench_words]
    if not (args.random or args.model or args.shape):
        words += ["--text", STORY]

    points, sheet = ROLES[args.role](args)
    order = random.Random(1)
    for _ in range(args.repeats):
        for p in order.sample(points, len(points)):
            p.runs.append(measure(p, words, args.waves))
    series: dict[str, chart.Points] = {}
    rows = []
    for p in points:
        x, y = sheet.place(p)
        series.setdefault(p.series, []).append((x, y))
        rows.append({"series": p.series, "concurrency": p.concurrency, "input_tokens": p.input_tokens, "x": x, "y": y})
        rows[-1] |= {"output_tokens": p.output_tokens, "runs": p.runs}
        print(f"{p.series:>18}  {p.concurrency:4} together  {sheet.x_label} {x:.4g}  {sheet.y_label} {y:.4g}")
    result = {"role": args.role, "x": sheet.x_label, "y": sheet.y_label, "points": rows}
    if args.role == "drafts":
        result["chosen_over_best"] = chosen_over_best(points)
        print("chosen over the best:", {c: round(ratio, 4) for c, ratio in result["chosen_over_best"].items()})
    (args.out / f"{args.role}.json").write_text(json.dumps(result, indent=1) + "\n")
    drawing = chart.lines(sheet.title, sheet.x_label, sheet.y_label, series, sheet.is_log)
    (args.out / f"{args.role}.svg").write_text(drawing)


if __name__ == "__main__":
    main()
