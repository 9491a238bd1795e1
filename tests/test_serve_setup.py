"""How the service is set up: keys, TLS, unix sockets, CORS, logs, limits on connections and requests."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import ssl
from pathlib import Path

import pytest
from command import ROOT, ok, refused
from server import Server, certificate, wait_until

STORY = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
LONG = {"prompt": "Once upon a time", "max_tokens": 20000, "temperature": 1, "ignore_eos": True, "stream": True}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_and_their_hot_reload(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna key-of-anna\n")
    with Server("--access-log", "off", "--keys", keys) as server:
        assert server.get("/health").status == 200
        assert server.get("/v1/models").status == 401
        assert server.get("/v1/models", bearer("key-of-bert")).status == 401
        assert server.get("/v1/models", bearer("key-of-anna")).status == 200
        keys.write_text("bert key-of-bert\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.get("/v1/models", bearer("key-of-bert")).status == 200)
        assert server.get("/v1/models", bearer("key-of-anna")).status == 401
        keys.write_text("broken\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("keys:1" in line for line in server.log))
        assert server.get("/v1/models", bearer("key-of-bert")).status == 200


def test_tenants_share_no_cache_and_cancel_only_their_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna key-of-anna\nbert key-of-bert\n")
    with Server("--access-log", "off", "--keys", keys) as server:
        body = {**STORY, "prompt": "The dog and the cat went to the park. " * 40}

        def hits(key: str) -> int:
            return server.post("/v1/completions", body, bearer(key)).json["usage"]["prompt_cache_hit_tokens"]

        assert hits("key-of-anna") == 0
        assert hits("key-of-anna") > 0
        assert hits("key-of-bert") == 0
        data = json.dumps(LONG).encode()
        with server.connect() as s:
            head = "POST /v1/completions HTTP/1.1\r\nX-Request-Id: hers\r\nAuthorization: Bearer key-of-anna\r\n"
            s.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            s.recv(1000)
            assert server.post("/v1/cancel/hers", b"", bearer("key-of-bert")).json["cancelled"] is False
            assert server.post("/v1/cancel/hers", b"", bearer("key-of-anna")).json["cancelled"] is True


def test_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "localhost")
    server = Server("--access-log", "off", "--tls-cert", cert, "--tls-key", key)
    try:
        context = ssl.create_default_context(cafile=str(cert))

        def get(path: str, body: str | None = None) -> tuple[int, bytes]:
            connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=60)
            connection.request("POST" if body else "GET", path, body=body)
            answer = connection.getresponse()
            return answer.status, answer.read()

        wait_until(lambda: get("/ready")[0] == 200)
        status, body = get("/v1/completions", json.dumps({**STORY, "stream": True}))
        assert status == 200 and body.endswith(b"data: [DONE]\n\n")
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:  # no handshake, then nothing
            s.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"HTTP" not in s.recv(100)
        assert get("/live")[0] == 200
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--tls-cert", "/nothing.pem"), "both"),
        (("--tls-cert", "/nothing.pem", "--tls-key", "/nothing.pem"), "/nothing.pem"),
        (("--keys", "/nothing"), "/nothing"),
        (("--host", "300.1.2.3"), "300.1.2.3"),
        (("--port", "70000"), "70000"),
        (("--access-log", "/nothing/log"), "/nothing/log"),
        (("--sampling", "wild"), "wild"),
    ],
)
def test_what_cannot_be_used_is_named(flags: tuple[str, ...], named: str) -> None:
    refused("serve", *flags, names=named)


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with Server("--access-log", "off", "--unix", path):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(path))
            s.sendall(b"GET /live HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert s.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert not path.exists()


def test_cors() -> None:
    with Server("--access-log", "off", "--cors-origin", "https://a.example") as server:
        asked = {"Origin": "https://a.example", "Access-Control-Request-Headers": "authorization"}
        preflight = server.request("OPTIONS", "/v1/chat/completions", headers=asked)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        assert preflight.headers["access-control-allow-headers"] == "authorization"
        assert "access-control-allow-origin" not in server.get("/live", {"Origin": "https://b.example"}).headers


def test_the_access_log_has_no_text_of_prompts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Server("--access-log", log) as server:
        server.post("/v1/completions", {**STORY, "prompt": "a secret of mine"}, {"X-Request-Id": "logged"})
        server.post("/v1/completions", {"prompt": "a secret of mine", "temperature": "secret"})
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    entry = next(line for line in lines if line["id"] == "logged")
    assert entry["status"] == 200 and entry["completion_tokens"] == 8 and entry["finish"] == "length"
    assert "secret" not in log.read_text()


def test_prompts_are_logged_if_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Server("--access-log", log, "--log-prompts") as server:
        server.ok("/v1/completions", {**STORY, "prompt": "a secret of mine"})
    assert "a secret of mine" in log.read_text()


def test_too_many_connections_are_refused() -> None:
    with Server("--access-log", "off", "--max-connections", 5) as server:
        held = [server.connect() for _ in range(5)]
        wait_until(lambda: server.connect().recv(100).startswith(b"HTTP/1.1 503"))
        for s in held:
            s.close()
        wait_until(lambda: server.get("/live").status == 200)


def test_overload_is_refused_at_once_and_the_accepted_finish() -> None:
    with Server("--access-log", "off", "--max-requests", 2) as server:
        data = json.dumps({**LONG, "max_tokens": 300}).encode()
        accepted = []
        for _ in range(2):
            s = server.connect()
            s.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            accepted.append((s, s.recv(500)))
        for _ in range(20):
            reply = server.post("/v1/completions", STORY)
            if reply.status == 200:  # one of them is done already
                break
            assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
            assert reply.json["error"]["code"] == "too_many_requests"
        for s, got in accepted:
            while b"0\r\n\r\n" not in got:
                got += s.recv(65536)
            assert b"data: [DONE]" in got
            s.close()
        assert server.metric("deepinfer_requests_rejected_total") > 0


def test_idempotency_key() -> None:
    with Server("--access-log", "off") as server:
        body = {**STORY, "temperature": 1}
        first = server.post("/v1/completions", body, {"Idempotency-Key": "k"})
        again = server.post("/v1/completions", body, {"Idempotency-Key": "k"})
        assert first.body == again.body and again.headers["x-idempotent-replay"] == "true"
        other = server.post("/v1/completions", STORY, {"Idempotency-Key": "k"})
        assert other.status == 422 and other.json["error"]["code"] == "idempotency_mismatch"


def test_official_sampling_rules() -> None:
    with Server("--access-log", "off", "--sampling", "official") as server:
        chat = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "max_tokens": 24}
        answers = {json.dumps(server.ok("/v1/chat/completions", {**chat, "seed": s})["choices"]) for s in range(4)}
        assert len(answers) > 1  # thinking: the temperature is 1 whatever was asked for


def test_endpoints_of_others_are_refused_with_the_reason() -> None:
    with Server("--access-log", "off") as server:
        reply = server.post("/v1/embeddings", {"input": "a"})
        assert reply.status == 501 and "embeddings" in reply.json["error"]["message"]
        assert server.get("/v1/messages/batches").status == 501


def test_packaging_uses_what_there_is() -> None:
    known = set(re.findall(r"(--[a-z][a-z-]*)", ok("serve", "--help")))
    unit = (ROOT / "packaging/deepinfer.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.M)
    container = (ROOT / "packaging/Containerfile").read_text()
    entry = re.search(r"^ENTRYPOINT (.*)$", container, re.M)
    assert command and entry
    words = command[1].split() + json.loads(entry[1])
    assert {w for w in words if w.startswith("--")} <= known
    # The unit waits longer than the service drains.
    drain = re.search(r"`--drain-time` \| (\d+)", ok("settings", "--markdown"))
    assert drain and int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > int(drain[1])  # type: ignore[index]
