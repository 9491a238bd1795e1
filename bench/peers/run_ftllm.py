#!/usr/bin/env python3
"""Measure ftllm (fastllm) prefill and decode on a checkpoint, in fresh processes.

  VENV/bin/python run_ftllm.py MODEL_DIR [--threads 1 2] [--procs 5] [--reps 5]
                  [--prompt 512] [--gen 64] [--device cpu] [--moe-device numa]
                  [--set FASTLLM_X=1 ...] [--out results.jsonl]

Each process loads the model, does one warm-up request, then `reps` requests of
`prompt` random tokens (new ones every time, prefix cache off) and `gen` greedy
tokens. Prefill tok/s = prompt / time to the first token; decode tok/s =
(gen-1) / (end - first token). One JSON record per process, then a summary over
the processes' medians. `foreign` is how many CPUs other processes kept busy
meanwhile: the wall figures of a record where it is above about 0.1 mean little. The
*_per_cpu_s figures (tokens per CPU second of this process) hold up on a busy machine
for one thread; with more threads they count the engine's spin-waiting as work.

Install: pip install ftllm==1.9.0  (requirements-ftllm.txt)
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import Foreign, emit, machine, spread, wait_quiet, warn  # noqa: E402


def child(a) -> None:
    for s in a.set:
        k, _, v = s.partition("=")
        os.environ[k] = v
    from ftllm import llm as L
    from ftllm.util import make_normal_llm_model, make_normal_parser

    argv = [a.model, "-t", str(a.threads[0]), "--prefix_cache", "0", "--max_batch", str(max(1, a.batch))]
    if a.device:
        argv += ["--device", a.device]
    if a.moe_device:
        argv += ["--moe_device", a.moe_device]
    argv += a.extra
    args = make_normal_parser("bench").parse_args(argv)
    t0 = time.perf_counter()
    model = make_normal_llm_model(args)
    load = time.perf_counter() - t0
    lib, rng = L.fastllm_lib, random.Random(7 + a.index)
    n_stop, stops = model.stop_token_ctypes(None)

    def request(n_prompt: int, n_gen: int, batch: int = 1):
        handles, start, c0, c1 = [], time.perf_counter(), time.process_time(), None
        for _ in range(batch):
            ids = [rng.randrange(3, a.vocab) for _ in range(n_prompt)]
            handles.append(
                lib.launch_response_llm_model(
                    model.model,
                    n_prompt,
                    (ctypes.c_int * n_prompt)(*ids),
                    ctypes.c_int(n_gen),
                    ctypes.c_int(0),
                    ctypes.c_bool(False),
                    ctypes.c_float(1.0),
                    ctypes.c_int(1),
                    ctypes.c_float(1.0),
                    ctypes.c_float(1.0),
                    ctypes.c_bool(False),
                    n_stop,
                    stops,
                )
            )
        first, count, end = [None] * batch, [0] * batch, [None] * batch
        while None in end:
            moved = False
            for i, h in enumerate(handles):
                if end[i] is None and lib.can_fetch_response_llm_model(model.model, h):
                    tok, now, moved = lib.fetch_response_llm_model(model.model, h), time.perf_counter(), True
                    if tok <= -1:
                        end[i] = now
                    else:
                        first[i] = first[i] or now
                        count[i] += 1
                        if c1 is None and None not in first:
                            c1 = time.process_time()
            if not moved:
                time.sleep(0.0005)
        return start, first, count, end, (c0, c1, time.process_time())

    request(min(64, a.prompt), 8, a.batch)
    pre, dec, got, pre_cpu, dec_cpu = [], [], [], [], []
    with Foreign() as f:
        for _ in range(a.reps):
            s, fi, c, e, cpu = request(a.prompt, a.gen, a.batch)
            pre.append(a.prompt * a.batch / (max(fi) - s))
            pre_cpu.append(a.prompt * a.batch / (cpu[1] - cpu[0]))
            n = sum(c) - a.batch
            if n > 0:
                dec.append(n / (max(e) - (max(fi) if a.batch > 1 else fi[0])))
                dec_cpu.append(n / (cpu[2] - cpu[1]))
            got.append(sum(c))
    emit(
        dict(
            peer="ftllm-1.9.0",
            threads=a.threads[0],
            device=a.device,
            moe_device=a.moe_device,
            env=a.set,
            extra=a.extra,
            prompt=a.prompt,
            gen=a.gen,
            batch=a.batch,
            load_s=round(load, 2),
            generated=got,
            prefill_tok_s=spread(pre),
            decode_tok_s=spread(dec),
            prefill_tok_per_cpu_s=spread(pre_cpu),
            decode_tok_per_cpu_s=spread(dec_cpu),
            foreign=round(f.foreign, 3),
            steal=round(f.steal, 3),
            own=round(f.own, 2),
        ),
        None,
    )
    sys.stdout.flush()
    os._exit(0)  # the engine's worker threads do not all join


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    ap.add_argument("--procs", type=int, default=5)
    ap.add_argument("--reps", type=int, default=5)
    ap.add_argument("--prompt", type=int, default=512)
    ap.add_argument("--gen", type=int, default=64)
    ap.add_argument("--batch", type=int, default=1)
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--moe-device", default="")
    ap.add_argument("--set", action="append", default=[])
    ap.add_argument(
        "--extra", action="append", default=[], help="a further ftllm option, e.g. --extra=--atype --extra=float32"
    )
    ap.add_argument("--timeout", type=float, default=600)
    ap.add_argument(
        "--patience", type=float, default=120, help="seconds to wait for a quiet machine before each process"
    )
    ap.add_argument("--out")
    ap.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    ap.add_argument("--index", type=int, default=0, help=argparse.SUPPRESS)
    a = ap.parse_args()
    cfg = json.load(open(os.path.join(a.model, "config.json")))
    a.vocab = cfg.get("text_config", cfg)["vocab_size"] - 128
    if a.child:
        return child(a)
    base = [sys.executable, os.path.abspath(__file__)] + sys.argv[1:]
    for t in a.threads:
        recs = []
        for i in range(a.procs):
            busy = wait_quiet(patience=a.patience)
            cmd = base + ["--child", "--index", str(i), "--threads", str(t)]
            try:
                p = subprocess.run(cmd, capture_output=True, text=True, timeout=a.timeout)
            except subprocess.TimeoutExpired:
                emit(dict(peer="ftllm-1.9.0", threads=t, error=f"timeout {a.timeout}s"), a.out)
                continue
            line = [x for x in p.stdout.splitlines() if x.startswith('{"peer"')]
            if not line:
                warn(p.stdout[-1500:], p.stderr[-2500:])
                emit(dict(peer="ftllm-1.9.0", threads=t, error=f"rc {p.returncode}"), a.out)
                break
            r = dict(json.loads(line[0]), busy_before=round(busy, 3))
            emit(r, a.out)
            recs.append(r)
        good = [r for r in recs if r["foreign"] + r["steal"] < 0.15] or recs
        if good:
            emit(
                dict(
                    summary="ftllm-1.9.0",
                    threads=t,
                    device=a.device,
                    moe_device=a.moe_device,
                    env=a.set,
                    extra=a.extra,
                    prompt=a.prompt,
                    gen=a.gen,
                    batch=a.batch,
                    processes=len(good),
                    of=len(recs),
                    prefill_tok_s=spread([r["prefill_tok_s"]["median"] for r in good]),
                    decode_tok_s=spread([r["decode_tok_s"]["median"] for r in good if r["decode_tok_s"]]),
                    prefill_tok_per_cpu_s=spread([r["prefill_tok_per_cpu_s"]["median"] for r in good]),
                    decode_tok_per_cpu_s=spread(
                        [r["decode_tok_per_cpu_s"]["median"] for r in good if r["decode_tok_per_cpu_s"]]
                    ),
                    foreign=spread([r["foreign"] + r["steal"] for r in good]),
                    machine=machine(),
                ),
                a.out,
            )


if __name__ == "__main__":
    main()
