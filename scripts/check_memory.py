#!/usr/bin/env python3
"""Does `generate` keep to its memory plan?

    deepinfer make-random --shape bench --out DIR && scripts/check_memory.py --model DIR

While one prompt runs, the process's page tables are read over and over. Two promises are held to the largest reading:

    anonymous    at most the planned caches, states, scratch and buffers, and 64 MiB
    mapped       at most the bytes of the tensors that were used, and 10 %. Used is a tensor of which at least half the
                 pages are present (the kernel maps a few pages around each fault, so that a neighbour's edge appears)
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = os.sysconf("SC_PAGE_SIZE")


def tensors_of(file: Path) -> list[tuple[int, int]]:
    """(first byte, byte after the last) of each tensor in the file."""
    with open(file, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
    return [tuple(8 + size + at for at in t["data_offsets"]) for n, t in header.items() if n != "__metadata__"]


def present_pages(pid: int, files: set[str]) -> dict[str, set[int]]:
    """Page numbers within each file that the process has mapped and present."""
    present: dict[str, set[int]] = {f: set() for f in files}
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb") as entries:
        for line in maps:
            fields = line.split()
            if len(fields) < 6 or fields[5] not in files:
                continue
            begin, end = (int(x, 16) for x in fields[0].split("-"))
            entries.seek(begin // PAGE * 8)
            flags = entries.read((end - begin) // PAGE * 8)[7::8]  # bit 63: present
            first = int(fields[2], 16) // PAGE
            present[fields[5]].update(first + i for i, flag in enumerate(flags) if flag & 0x80)
    return present


def anonymous(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.M)[1]) * 1024


def planned(plan: str) -> float:
    """Bytes of caches, states, scratch and buffers as the engine prints them at start."""
    total = 0.0
    for name in (r"cache", r"states", r"windows", r"scratch", r"[^\n]*buffers"):
        value, unit = re.search(rf"^{name}\s+([\d.]+) (KiB|MiB|GiB)", plan, re.M).groups()
        total += float(value) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    return total


def watch(command: list[str], files: set[str]):
    """Runs the command: (largest anonymous bytes, the fullest page map, what it printed on its terminal)."""
    terminal, slave = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    peak, fullest = 0, {}
    while process.poll() is None:
        try:
            peak = max(peak, anonymous(process.pid))
            pages = present_pages(process.pid, files)
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            break
        if sum(map(len, pages.values())) >= sum(map(len, fullest.values())):
            fullest = pages
        time.sleep(0.02)
    printed = b""
    try:
        while chunk := os.read(terminal, 65536):
            printed += chunk
    except OSError:  # a terminal nobody writes to any more
        pass
    if process.wait() != 0:
        raise SystemExit(printed.decode())
    return peak, fullest, printed.decode()


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=Path, required=True)
    ap.add_argument("--prompt-tokens", type=int, default=3)
    ap.add_argument("--max-tokens", type=int, default=1)
    a = ap.parse_args()
    files = {str(f.resolve()): tensors_of(f) for f in a.model.glob("*.safetensors")}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as ids:
        ids.write(str([5 + i % 97 for i in range(a.prompt_tokens)]))
        ids.flush()
        command = [os.environ.get("DEEPINFER", str(ROOT / "deepinfer")), "generate", "--model", str(a.model)]
        command += ["--ids", ids.name, "--max-tokens", str(a.max_tokens), "--ignore-eos"]
        peak, pages, printed = watch(command, set(files))
    used = 0
    for file, tensors in files.items():
        for begin, end in tensors:
            span = range(begin // PAGE, -(-end // PAGE))
            if 2 * sum(page in pages[file] for page in span) >= len(span):
                used += end - begin
    mapped, plan = sum(map(len, pages.values())) * PAGE, planned(printed)
    checks = {
        "anonymous": (peak, plan + 64 * 2**20, f"planned {plan / 2**20:.1f} MiB"),
        "mapped": (mapped, 1.1 * used, f"tensors used {used / 2**20:.1f} MiB"),
    }
    for name, (value, limit, reason) in checks.items():
        verdict = "ok  " if value <= limit else "FAIL"
        print(f"{verdict} {name}: {value / 2**20:.1f} MiB, at most {limit / 2**20:.1f} ({reason})")
    return any(value > limit for value, limit, _ in checks.values())


if __name__ == "__main__":
    sys.exit(main())
