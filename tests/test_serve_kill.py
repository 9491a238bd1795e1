"""The process is killed while it answers, and started anew: clients see errors, never a part that looks whole."""

from __future__ import annotations

import json
import random
import signal
import socket
import threading
import time
from collections import Counter

from server import Json, Server, parse_events, wait_until

PROMPTS = [f"One day {name} went to the park." for name in ("Tom", "Lily", "Sam", "Anna", "Ben", "Mia")]
TOKENS = 60


def body_of(prompt: str, stream: bool) -> Json:
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": stream}


def read_whole(port: int, body: Json, version: str) -> tuple[int, bytes]:
    """Status and body of an answer that is whole by the rules of HTTP; EOFError if it is not."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        s.sendall(f"POST /v1/completions HTTP/{version}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        stream = s.makefile("rb")
        status = stream.readline().split(b" ")
        headers: dict[bytes, bytes] = {}
        while (line := stream.readline()).strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        if len(status) < 2 or line != b"\r\n":
            raise EOFError("cut in the head")
        if b"content-length" in headers:
            size = int(headers[b"content-length"])
            content = stream.read(size)
            if len(content) < size:
                raise EOFError("cut in the body")
        elif headers.get(b"transfer-encoding") == b"chunked":
            content = read_chunks(stream)
        else:
            content = stream.read()  # HTTP/1.0: up to the end of the connection
        return int(status[1]), content


def read_chunks(stream: object) -> bytes:
    content = b""
    while True:
        line = stream.readline()  # type: ignore[attr-defined]
        if not line.endswith(b"\r\n"):
            raise EOFError("cut in a chunk's size")
        size = int(line, 16)
        chunk = stream.read(size + 2)  # type: ignore[attr-defined]
        if len(chunk) < size + 2:
            raise EOFError("cut in a chunk")
        if size == 0:
            return content
        content += chunk[:-2]


def text_of(content: bytes, stream: bool) -> str:
    """The text of an answer that a client would take for whole; ValueError if it would not."""
    if not stream:
        return json.loads(content)["choices"][0]["text"]
    if not content.endswith(b"data: [DONE]\n\n"):
        raise ValueError("no end mark")
    events = parse_events(content)[:-1]
    if any("error" in e.json for e in events):
        raise ValueError("an error event")
    choices = [c for e in events for c in e.json["choices"]]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] in (["length"], ["stop"])
    return "".join(c["text"] for c in choices)


def client(ports: list[int], expected: dict[str, str], stop: threading.Event, counts: Counter, seed: int) -> None:
    rng = random.Random(seed)
    while not stop.is_set():
        prompt, stream = rng.choice(PROMPTS), rng.random() < 0.7
        version = "1.0" if rng.random() < 0.3 else "1.1"
        try:
            status, content = read_whole(ports[-1], body_of(prompt, stream), version)
            if status != 200:
                counts["refused"] += 1
                continue
            text = text_of(content, stream)
        except (OSError, EOFError, ValueError):
            counts["errors"] += 1
            time.sleep(0.01)
            continue
        counts["whole" if text == expected[prompt] else "wrong"] += 1


def test_a_killed_server_leaves_no_answer_that_looks_whole() -> None:
    ports: list[int] = []
    expected: dict[str, str] = {}
    counts: Counter = Counter()
    stop = threading.Event()
    clients = [threading.Thread(target=client, args=(ports, expected, stop, counts, i)) for i in range(12)]
    rng = random.Random(7)
    for life in range(3):
        with Server("--access-log", "off") as server:
            ports.append(server.port)
            if life == 0:
                for prompt in PROMPTS:
                    expected[prompt] = server.ok("/v1/completions", body_of(prompt, False))["choices"][0]["text"]
                for c in clients:
                    c.start()
            # Each life answers something before it is killed in the middle of the rest.
            before = counts["whole"]
            wait_until(lambda before=before: counts["whole"] >= before + 10)
            time.sleep(rng.uniform(0, 0.2))
            wait_until(lambda server=server: server.metric("deepinfer_requests_admitted") > 0)
            server.expects_exit = -signal.SIGKILL
            server.process.kill()
            server.process.wait()
            errors = counts["errors"]
            wait_until(lambda errors=errors: counts["errors"] > errors)
    stop.set()
    for c in clients:
        c.join()
    assert counts["wrong"] == 0
    assert counts["whole"] >= 30 and counts["errors"] > 0, counts
