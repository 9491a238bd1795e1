"""Shared pieces of the side-by-side measurements: quiet-machine checks, statistics, records.

Only the standard library, so that every peer's own environment can import it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

HZ = os.sysconf("SC_CLK_TCK")


def _stat() -> tuple[float, float, float]:
    """(busy, steal, total) seconds of all CPUs since boot; busy leaves out idle, iowait and steal."""
    with open("/proc/stat") as f:
        v = [int(x) / HZ for x in f.readline().split()[1:9]]
    user, nice, system, idle, iowait, irq, soft, steal = v
    return user + nice + system + irq + soft, steal, sum(v)


def tree_cpu(pid: int) -> float:
    """CPU seconds used so far by a live process and its living descendants."""
    total, todo = 0.0, [pid]
    while todo:
        p = todo.pop()
        try:
            with open(f"/proc/{p}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / HZ
            for t in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{t}/children") as f:
                    todo += [int(c) for c in f.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


class Foreign:
    """Measures how much CPU others used (and how much was stolen) while we ran.

    with Foreign() as f: work()
    f.foreign  -> mean number of CPUs kept busy by processes outside our tree
    f.steal    -> mean number of CPUs taken by the hypervisor
    """

    def __init__(self, pid: int | None = None):
        self.pid = pid or os.getpid()

    def __enter__(self):
        self.t0, self.s0, self.own0 = time.perf_counter(), _stat(), tree_cpu(self.pid)
        return self

    def __exit__(self, *exc):
        dt = max(time.perf_counter() - self.t0, 1e-9)
        s1, own1 = _stat(), tree_cpu(self.pid)
        self.own = (own1 - self.own0) / dt
        self.foreign = max(0.0, (s1[0] - self.s0[0]) / dt - self.own)
        self.steal = max(0.0, (s1[1] - self.s0[1]) / dt)
        return False


def wait_quiet(limit: float = 0.10, window: float = 1.0, patience: float = 120.0) -> float:
    """Wait until others use less than `limit` CPUs over a window; returns the last reading."""
    end = time.monotonic() + patience
    while True:
        with Foreign() as f:
            time.sleep(window)
        busy = f.foreign + f.steal
        if busy < limit or time.monotonic() > end:
            return busy


def spread(values) -> dict:
    v = sorted(float(x) for x in values)
    if not v:
        return {}
    q = statistics.quantiles(v, n=4, method="inclusive") if len(v) > 1 else [v[0]] * 3
    return dict(n=len(v), median=statistics.median(v), min=v[0], max=v[-1], q1=q[0], q3=q[2])


def machine() -> dict:
    cpu, flags = "", []
    with open("/proc/cpuinfo") as f:
        for line in f:
            k, _, val = line.partition(":")
            if k.strip() == "model name":
                cpu = val.strip()
            elif k.strip() == "flags":
                flags = val.split()
                break
    interesting = [
        x
        for x in (
            "avx2",
            "fma",
            "avx512f",
            "avx512bw",
            "avx512_vnni",
            "avx512_bf16",
            "avx512_fp16",
            "amx_bf16",
            "amx_int8",
            "avx_vnni",
        )
        if x in flags
    ]
    mem = next((int(x.split()[1]) for x in open("/proc/meminfo") if x.startswith("MemTotal")), 0)
    return dict(
        cpu=cpu,
        cpus=os.cpu_count(),
        isa=interesting,
        mem_gib=round(mem / 2**20, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def emit(record: dict, out: str | None) -> None:
    """Print one JSON record; append it to a .jsonl file if one is named."""
    line = json.dumps(record)
    print(line, flush=True)
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        with open(out, "a") as f:
            f.write(line + "\n")


def warn(*a) -> None:
    print(*a, file=sys.stderr, flush=True)
