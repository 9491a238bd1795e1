#!/usr/bin/env python3
"""Compare the engine with the golden outputs of tests/golden/random-small.

    "$(scripts/oracle/setup.sh)" scripts/check_fixture.py [--numerics fp32 qat vendor] [--backend cpu]

fp32, qat: logits within 2e-4 at every position, the chosen and candidate entries of every query, Engram rows, 24
greedy steps with a draft before each (tokens equal, confidences within 1e-3), short prompts, an image span, chunked
prefill and decoding token by token. vendor: the first 17 tokens, where no selection drops anything: logits within 0.05
and at least 99 % of the values of every layer bit-equal. (Longer prompts flip roundings whose effect a random network
amplifies: check_layers.py takes these layer by layer. So do the fp32 sums of a GPU: with --backend cuda each layer is
compared on the engine's own input, as check_layers.py does, and the logits may be half as far off as the reference's
are from the unrounded model.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "oracle"))
import check_layers
from safetensors.torch import load_file

from engine import FIXTURE, Report, difference, logits, masks_differ

LOGITS, CONFIDENCE = 2e-4, 1e-3


def exact_presets(report: Report, name: str, options: list[str]) -> None:
    """Everything that fp32 and qat promise: the same numbers but for the order of sums."""
    common, gold = (
        load_file(FIXTURE / "golden" / "common.safetensors"),
        load_file(FIXTURE / "golden" / f"{name}.safetensors"),
    )
    ids, greedy = common["input_ids"].tolist(), gold["greedy_tokens"].tolist()
    model, base = FIXTURE / "checkpoint", ["--numerics", name, *options]

    got = logits(model, [ids], *base, "--trace", "--hidden")
    report.at_most(f"{name}: logits of the prompt", difference(got["logits.0"], gold["logits"]), LOGITS)
    streams = sorted(
        (k for k in gold if k.startswith("trace.layers.") and k.endswith(".streams")),
        key=lambda k: int(k.split(".")[2]),
    )
    for key in streams:
        layer, want = int(key.split(".")[2]), gold[key]
        mine = got[f"hidden.0.{layer + 1}"][-len(want) :]
        report.at_most(
            f"{name}: streams after layer {layer}", difference(mine.reshape(want.shape).float(), want), LOGITS
        )
    for kind in ("chosen", "candidates"):
        for key in sorted(k for k in gold if k.endswith("." + kind)):
            layer = key.split(".")[2]
            wrong = masks_differ(got[f"{kind}.0.{layer}"], gold[key])
            report.equal(f"{name}: queries with other {kind} entries in layer {layer}", wrong, 0)
    rows = gold["trace.engram_rows"]
    report.equal(f"{name}: Engram rows", int((got["engram.0"].reshape(rows.shape) != rows).sum()), 0)

    # greedy steps: the prompt and its first k greedy tokens give greedy token k and the draft made for it
    runs = logits(model, [ids + greedy[:k] for k in range(len(greedy))], *base)
    tokens = [int(runs[f"logits.{k}"][-1].argmax()) for k in range(len(greedy))]
    report.equal(f"{name}: {len(greedy)} greedy tokens", tokens, greedy)
    report.equal(
        f"{name}: drafts", [runs[f"draft.{k}"].tolist() for k in range(len(greedy))], gold["draft_tokens"].tolist()
    )
    worst = max(difference(runs[f"confidence.{k}"], gold["draft_confidence"][k]) for k in range(len(greedy)))
    report.at_most(f"{name}: confidences", worst, CONFIDENCE)

    step = logits(model, [ids + greedy], *base, "--decode-from", str(len(ids)))["logits.0"]
    report.at_most(f"{name}: decoding token by token", difference(step[len(ids) :], gold["greedy_logits"]), LOGITS)
    for chunk in (1, 7, 8, 64):
        part = logits(model, [ids], *base, "--chunk", str(chunk))["logits.0"]
        report.at_most(f"{name}: chunks of {chunk}", difference(part, gold["logits"]), LOGITS)

    lengths = common["short_lengths"].tolist()
    short = logits(model, [ids[:n] for n in lengths], *base)
    worst = max(difference(short[f"logits.{k}"][-1], gold["short_logits"][k]) for k in range(len(lengths)))
    report.at_most(f"{name}: prompts of {lengths[0]} to {lengths[-1]} tokens", worst, LOGITS)

    mask = common["image_mask"]
    where = mask.nonzero().flatten().tolist()
    span = {"ids": ids[: len(mask)], "image": [[where[0], where[-1] + 1]]}
    for label, extra in (("image span", []), ("image span, chunks of 4", ["--chunk", "4"])):
        image = logits(model, [span], *base, *extra)["logits.0"]
        report.at_most(f"{name}: {label}", difference(image, gold["image_logits"]), LOGITS)


def rounded_preset(report: Report, backend: str | None, options: list[str]) -> None:
    """vendor: every rounding in its place, so nearly all values are equal in bits."""
    options = options + (["--backend", backend] if backend else [])
    common, gold = (
        load_file(FIXTURE / "golden" / "common.safetensors"),
        load_file(FIXTURE / "golden" / "vendor.safetensors"),
    )
    ids = common["input_ids"].tolist()[:17]
    got = logits(FIXTURE / "checkpoint", [ids], "--numerics", "vendor", *options, "--hidden")
    want, limit = gold["prefix17.logits"], 0.05
    if backend == "cuda":
        unrounded = load_file(FIXTURE / "golden" / "qat.safetensors")["logits"]
        limit = difference(want, unrounded[: len(want)]) / 2
    report.at_most("vendor: logits", difference(got["logits.0"], want), limit)
    if backend == "cuda":
        with tempfile.TemporaryDirectory(prefix="fixture-") as folder:
            check_layers.compare(report, FIXTURE / "checkpoint", "vendor", backend, [ids], 1, Path(folder))
        return
    layer = 0
    while (want := gold.get(f"prefix17.layers.{layer}.streams")) is not None:
        mine = got[f"hidden.0.{layer + 1}"].reshape(want.shape)
        share = float((mine.double() == want.double()).double().mean())
        report.check(f"vendor: values after layer {layer}", share >= 0.99, f"{100 * share:.2f} % equal")
        layer += 1
    report.check("vendor: layers compared", layer > 0, str(layer))


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--numerics", nargs="+", choices=["fp32", "qat", "vendor"], default=["fp32", "qat", "vendor"])
    ap.add_argument("--backend", help="backend for vendor (fp32 and qat imply ref)")
    ap.add_argument("--options", default="", help="more options of `deepinfer logits`, in one string")
    ap.add_argument("--quiet", action="store_true", help="print failures only")
    a = ap.parse_args()
    report = Report(a.quiet)
    for name in a.numerics:
        if name == "vendor":
            rounded_preset(report, a.backend, a.options.split())
        else:
            exact_presets(report, name, a.options.split())
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
