"""A running `deepinfer serve`, and clients that know only the standards: raw HTTP and server-sent events."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command import BINARY, TINY

Json = dict[str, Any]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return json.loads(self.body)


@dataclass
class Event:
    data: str
    name: str = ""
    comments: list[str] = field(default_factory=list)

    @property
    def json(self) -> Json:
        return json.loads(self.data)


def parse_events(stream: bytes) -> list[Event]:
    """The events of a whole stream, by the rules of the standard; anything that is no event fails."""
    assert stream.endswith(b"\n\n"), f"the stream ends inside an event: {stream[-80:]!r}"
    events = []
    for block in stream.decode().split("\n\n")[:-1]:
        event, data = Event(""), []
        for line in block.split("\n"):
            if line.startswith(":"):
                event.comments.append(line[1:].strip())
                continue
            name, colon, value = line.partition(":")
            assert colon, f"not a field: {line!r}"
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "event":
                event.name = value
            else:
                raise AssertionError(f"unexpected field {line!r}")
        event.data = "\n".join(data)
        if data:
            events.append(event)
        else:
            assert event.comments, f"an empty event: {block!r}"
    return events


class Server:
    """One process; ends with the `with` block, which checks that it ended as it should."""

    def __init__(self, *args: object, model: Path = TINY, env: dict[str, str] | None = None) -> None:
        words = [str(a) for a in (BINARY, "serve", "--model", model, "--port", 0, *args)]
        self.process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.log: list[str] = []
        self.port = 0
        self.expects_exit = 0
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.match(r"listening\s+https?://.*:(\d+)$", line):
                self.port = int(found[1])
                break
        threading.Thread(target=self._drain_log, daemon=True).start()

    def _drain_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def __enter__(self) -> Server:
        if self.port == 0:
            self.process.wait()
            raise AssertionError("".join(self.log))
        self.wait_ready()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        if kind is None:
            assert code == self.expects_exit, (code, "".join(self.log[-20:]))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        for _ in range(600):
            assert self.process.poll() is None, "".join(self.log)
            if self.get("/ready").status == 200:
                return
            time.sleep(0.05)
        raise AssertionError("the server did not become ready: " + "".join(self.log))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def request(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, body=data, headers=headers or {})
            answer = connection.getresponse()
            content = answer.read()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, content)
        finally:
            connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, headers)

    def ok(self, path: str, body: object) -> Json:
        reply = self.post(path, body)
        assert reply.status == 200, reply.body
        return reply.json

    def stream(self, path: str, body: Json) -> list[Event]:
        reply = self.post(path, {**body, "stream": True})
        assert reply.status == 200, reply.body
        assert reply.headers["content-type"].startswith("text/event-stream")
        return parse_events(reply.body)

    def metric(self, name: str) -> float:
        """The sum over all samples of a metric."""
        text = self.get("/metrics").body.decode()
        rows = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        return sum(float(v) for v in rows)

    def tokens(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are read as such."""
        body = {"prompt": text, "parse_control_tokens": True, "add_special_tokens": False}
        return self.ok("/tokenize", body)["tokens"]


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for a name, signed by itself, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, key


@dataclass
class Answer:
    """One choice of a chat, put together from chunks."""

    content: str = ""
    reasoning: str = ""
    calls: list[Json] = field(default_factory=list)
    finish: str | None = None


def join_chat(events: list[Event], choice: int = 0) -> Answer:
    """What a client makes of a stream of chat chunks; fails on a chunk after the last one and on a missing end."""
    assert events[-1].data == "[DONE]", events[-1].data
    answer = Answer()
    for event in events[:-1]:
        chunk = event.json
        assert "error" not in chunk, chunk
        assert chunk["object"] == "chat.completion.chunk"
        for c in chunk["choices"]:
            if c["index"] != choice:
                continue
            assert answer.finish is None, "a chunk after the last one"
            delta = c["delta"]
            answer.content += delta.get("content") or ""
            answer.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(answer.calls)
                    answer.calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                answer.calls[call["index"]]["arguments"] += call["function"]["arguments"]
            answer.finish = c["finish_reason"]
    assert answer.finish is not None
    return answer


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
