"""The service at several times its capacity: refused at once, accepted within the bound, no throughput lost.

    python scripts/overload_serve.py --factors 0.5 1 3 --seconds 25

Starts `./deepinfer serve` on the built-in model and loads it with `deepinfer bench serve`. Capacity is what it answers
when --clients requests are always in. Then requests arrive at random at each factor of it. Ends with exit code 1 if a
refusal took more than 50 ms, if the first tokens of accepted requests came later than --max-wait and one step, or if
the tokens a second at the highest factor fell more than 5 % below the best of all runs. Server and client share the
machine, which the figures say nothing about otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LATEST_REFUSAL_MS = 50
LEAST_SHARE = 0.95


def start(args: argparse.Namespace) -> tuple[subprocess.Popen[str], str]:
    words = [args.binary, "serve", "--port", "0", "--quiet", "--access-log", "off", "--max-wait", str(args.max_wait)]
    server = subprocess.Popen([*words, *args.serve], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = ""
    for line in server.stderr:
        if found := re.match(r"listening\s+(\S+)", line):
            url = found[1]
        if line.endswith("ready\n"):
            return server, url
    raise SystemExit(f"the server ended with {server.wait()}")


def load(args: argparse.Namespace, url: str, *words: object) -> dict[str, float]:
    lengths = ["--input-len", args.input_len, "--output-len", args.output_len]
    command = [args.binary, "bench", "serve", "--url", url, "--json", "-", *lengths, *(str(w) for w in words)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def row(name: str, r: dict[str, float]) -> None:
    print(
        f"{name:>8}  {r['request_throughput']:8.2f} requests/s  {r['output_throughput']:8.1f} tokens/s  "
        f"{r['completed']:5} answered  {r['refused']:5} refused  {r['failed'] - r['refused']:3} failed  "
        f"first token p50 {r['median_ttft_ms']:7.0f} p99 {r['p99_ttft_ms']:7.0f}  between p99 {r['p99_itl_ms']:6.1f}  "
        f"refusal p99 {r['p99_refusal_ms']:5.1f} most {r['max_refusal_ms']:5.1f} ms",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "deepinfer"))
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 1, 3])
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--max-wait", type=float, default=2)
    parser.add_argument("--input-len", default="uniform:50:200")
    parser.add_argument("--output-len", default="uniform:10:60")
    parser.add_argument("serve", nargs="*", help="further options of the server, after --")
    args = parser.parse_args()
    server, url = start(args)
    try:
        load(args, url, "--num-prompts", 2 * args.clients, "--max-concurrency", args.clients)  # warm
        full = load(args, url, "--num-prompts", 8 * args.clients, "--max-concurrency", args.clients, "--seed", 1)
        row("full", full)
        runs = [full]
        for seed, factor in enumerate(args.factors, 2):
            rate = factor * full["request_throughput"]
            count = max(20, round(rate * args.seconds))
            runs.append(load(args, url, "--num-prompts", count, "--request-rate", rate, "--seed", seed))
            row(f"{factor} x", runs[-1])
    finally:
        server.terminate()
        ended = server.wait(timeout=120)
    last, best = runs[-1], max(r["output_throughput"] for r in runs)
    problems = []
    if last["max_refusal_ms"] > LATEST_REFUSAL_MS:
        problems.append(f"a refusal took {last['max_refusal_ms']:.1f} ms")
    if last["p99_ttft_ms"] > 1000 * args.max_wait + last["p99_itl_ms"]:
        problems.append(f"first tokens came after {last['p99_ttft_ms']:.0f} ms (99 %)")
    if last["output_throughput"] < LEAST_SHARE * best:
        problems.append(f"{100 * last['output_throughput'] / best:.0f} % of the best throughput")
    if sum(r["failed"] - r["refused"] for r in runs) or ended:
        problems.append("requests failed or the server did")
    print("; ".join(problems) or "all within their bounds")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
