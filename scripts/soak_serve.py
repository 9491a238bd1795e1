"""The service under many clients for a while: nothing lost, nothing mixed up, memory and the cost of a stream flat.

    python scripts/soak_serve.py --idle 4000 --streams 500 --minutes 20

Starts `./deepinfer serve` on the built-in model. Idle clients hold connections and now and then ask for /live.
Streaming clients ask for greedy stories, one after the other, and compare each stream with the whole answer to the same
prompt. Beside them some clients read nothing, some leave in the middle, some send rubbish or half a request. Prints one
line a period, with the server's resident memory and its CPU time for a stream, which does not depend on what else the
machine does. Ends with exit code 1 if anything was wrong or if a stream costs more towards the end than it did before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["Tom", "Lily", "Sam", "Anna", "Ben", "Mia", "Max", "Sue"]
PROMPTS = [f"One day {a} and {b} went to the park." for a in NAMES for b in NAMES]
RUBBISH = [
    b"\x16\x03\x01\x02\x00",
    b"GET / HTTP/7\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{{{{{{{{{",
]
Address = tuple[str, int]
LARGEST_GROWTH = 1.25  # of what a stream costs and of memory, from the second third to the last


class Counts:
    def __init__(self) -> None:
        self.streams = self.wrong = self.lost = self.refused = self.idle = self.left = self.rubbish = self.half = 0
        self.first: list[float] = []


def request(body: dict[str, object], close: bool = False) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: soak\r\n" + ("Connection: close\r\n" if close else "")
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def body_of(prompt: str, tokens: int, stream: bool = True) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}


async def ask(address: Address, body: dict[str, object]) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request(body, close=True))
        answer = await reader.read()
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), rest


async def chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body, up to its end mark."""
    out = b""
    while size := int((await reader.readline()).strip(), 16):
        out += await reader.readexactly(size + 2)
        out = out[:-2]
    await reader.readline()
    return out


def text_of(stream: bytes) -> str:
    """The text of a stream; raises if it does not end as it should."""
    events = [e.removeprefix("data: ") for e in stream.decode().split("\n\n") if e.startswith("data: ")]
    if events[-1] != "[DONE]":
        raise ValueError("no end mark")
    parsed = [json.loads(e) for e in events[:-1]]
    finishes = [c["finish_reason"] for e in parsed for c in e["choices"] if c["finish_reason"]]
    if finishes not in (["length"], ["stop"]):
        raise ValueError(f"finish reasons {finishes}")
    return "".join(c["text"] for e in parsed for c in e["choices"])


async def stream_client(address: Address, expected: dict[str, str], tokens: int, end: float, counts: Counts) -> None:
    rng = random.Random(id(asyncio.current_task()))
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection(*address)
            while time.monotonic() < end:
                prompt = rng.choice(PROMPTS)
                begin = time.monotonic()
                writer.write(request(body_of(prompt, tokens)))
                status = int((await reader.readline()).split(b" ")[1])
                headers = b""
                while (line := await reader.readline()) != b"\r\n":
                    headers += line.lower()
                if status != 200:
                    length = int(re.search(rb"content-length: (\d+)", headers)[1])  # type: ignore[index]
                    await reader.readexactly(length)
                    counts.refused += 1
                    await asyncio.sleep(1)
                    continue
                text = text_of(await chunks(reader))
                counts.first.append(time.monotonic() - begin)
                counts.streams += 1
                counts.wrong += text != expected[prompt]
            writer.close()
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as problem:
            counts.lost += 1
            print("lost:", repr(problem), file=sys.stderr)


async def idle_client(address: Address, end: float, counts: Counts) -> None:
    """Holds a connection; asks for something shortly before it would be closed for being idle."""
    reader, writer = await asyncio.open_connection(*address)
    while time.monotonic() < end:
        writer.write(b"GET /live HTTP/1.1\r\nHost: soak\r\n\r\n")
        await reader.readuntil(b'"live"}')
        counts.idle += 1
        await asyncio.sleep(min(45.0 * random.uniform(0.5, 1), max(0.1, end - time.monotonic())))
    writer.close()


async def rude_clients(address: Address, end: float, counts: Counts) -> None:
    """One after the other: leaves in the middle, sends rubbish, reads nothing."""
    while time.monotonic() < end:
        for kind in ("leave", "rubbish", "deaf"):
            reader, writer = await asyncio.open_connection(*address)
            if kind == "rubbish":
                writer.write(random.choice(RUBBISH))
                await reader.read()
                counts.rubbish += 1
            else:
                writer.write(request({**body_of(PROMPTS[0], 400), "logprobs": 20}))
                await (reader.readline() if kind == "leave" else asyncio.sleep(2))
                counts.left += 1
            writer.close()
        await asyncio.sleep(0.2)


async def half_open_client(address: Address, end: float, counts: Counts) -> None:
    """Sends half a request and nothing more until the server gives up on it."""
    while time.monotonic() < end:
        reader, writer = await asyncio.open_connection(*address)
        whole = request(body_of(PROMPTS[0], 1))
        writer.write(whole[: random.randrange(1, len(whole))])
        answer = await reader.read()
        writer.close()
        if not answer.startswith(b"HTTP/1.1 408 "):
            raise ValueError(f"half a request was answered with {answer[:40]!r}")
        counts.half += 1


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Period(NamedTuple):
    memory_mb: float
    streams: int
    cpu_s: float


async def report(pid: int, begin: float, end: float, period: float, counts: Counts) -> list[Period]:
    periods = []
    before = (time.monotonic(), counts.streams, cpu_seconds(pid))
    while time.monotonic() < end:
        await asyncio.sleep(min(period, max(0.1, end - time.monotonic())))
        now = (time.monotonic(), counts.streams, cpu_seconds(pid))
        seconds, streams, cpu = (a - b for a, b in zip(now, before, strict=True))
        before = now
        periods.append(Period(resident_mb(pid), int(streams), cpu))
        latest = sorted(counts.first[-2000:])
        middle = latest[len(latest) // 2] if latest else 0
        print(
            f"{now[0] - begin:7.0f} s  {periods[-1].memory_mb:8.1f} MB  {counts.streams} streams, "
            f"{streams / seconds:.2f} a second, {1000 * cpu / max(1, streams):.0f} ms of CPU and {middle:.2f} s each, "
            f"{counts.wrong} wrong, "
            f"{counts.lost} lost, {counts.refused} refused, {counts.idle} idle asks, {counts.left} left, "
            f"{counts.rubbish} rubbish, {counts.half} half",
            flush=True,
        )
    return periods


def cost_of_a_stream(periods: list[Period]) -> float:
    return sum(p.cpu_s for p in periods) / max(1, sum(p.streams for p in periods))


def judge(periods: list[Period]) -> bool:
    """Prints what became of memory and cost after the first third, in which everything starts; false if they grew."""
    third = max(1, len(periods) // 3)
    middle, last = periods[third:-third], periods[-third:]
    if not middle:
        print("too few periods to compare")
        return True
    memory = [p.memory_mb for p in middle + last]
    before, after = cost_of_a_stream(middle), cost_of_a_stream(last)
    print(
        f"after the first third: memory {min(memory):.1f} to {max(memory):.1f} MB; "
        f"a stream cost {1000 * before:.0f} ms of CPU in the second third, {1000 * after:.0f} in the last"
    )
    return after <= LARGEST_GROWTH * before and last[-1].memory_mb <= LARGEST_GROWTH * middle[0].memory_mb


async def soak(args: argparse.Namespace, address: Address, pid: int) -> int:
    counts = Counts()
    expected = {}
    for prompt in PROMPTS:
        status, rest = await ask(address, body_of(prompt, args.tokens, stream=False))
        assert status == 200, rest
        expected[prompt] = json.loads(rest)["choices"][0]["text"]
    begin = time.monotonic()
    end = begin + args.minutes * 60
    tasks = []
    for i in range(args.idle):
        tasks.append(asyncio.create_task(idle_client(address, end, counts)))
        if i % 100 == 99:
            await asyncio.sleep(0.05)
    for _ in range(args.streams):
        tasks.append(asyncio.create_task(stream_client(address, expected, args.tokens, end, counts)))
    for _ in range(args.rude):
        tasks.append(asyncio.create_task(rude_clients(address, end, counts)))
        tasks.append(asyncio.create_task(half_open_client(address, end, counts)))
    periods = await report(pid, begin, end, args.period, counts)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [d for d in done if isinstance(d, BaseException)]
    for failure in failures[:5]:
        print("failed:", repr(failure), file=sys.stderr)
    print(f"{len(failures)} clients failed")
    is_flat = judge(periods)
    return int(bool(counts.wrong or counts.lost or failures or not is_flat))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "deepinfer"))
    parser.add_argument("--idle", type=int, default=4000)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rude", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--period", type=float, default=30)
    args = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    words = [args.binary, "serve", "--port", "0", "--quiet", "--access-log", "off", "--max-wait", "600"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    port = 0
    for line in server.stderr:
        if found := re.match(r"listening\s+http://127.0.0.1:(\d+)", line):
            port = int(found[1])
        if line.endswith("ready\n"):
            break
    try:
        code = asyncio.run(soak(args, ("127.0.0.1", port), server.pid))
    finally:
        server.terminate()
        ended = server.wait(timeout=120)
    print("the server ended with", ended)
    return code or ended


if __name__ == "__main__":
    sys.exit(main())
