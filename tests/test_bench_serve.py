"""`deepinfer bench serve` against the real server, and against servers that do something wrong."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import ok, refused
from server import Server, certificate, wait_until

FIGURES = ["ttft", "tpot", "itl", "e2el"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--access-log", "off") as s:
        yield s


def bench(url: str, *args: object) -> dict:
    return json.loads(ok("bench", "serve", "--url", url, "--json", "-", *args))


def test_an_open_loop_is_measured(server: Server, tmp_path: Path) -> None:
    counted = {n: server.metric(f"deepinfer_{n}_sum") for n in ("prompt_tokens", "generation_tokens")}
    args = ("--num-prompts", 12, "--request-rate", 40, "--input-len", "uniform:5:30", "--output-len", 6)
    out = bench(server.url, *args, "--goodput", "e2el:60000", "--detailed")
    assert (out["completed"], out["failed"], out["num_prompts"]) == (12, 0, 12)
    assert out["total_output_tokens"] == 12 * 6
    assert out["total_input_tokens"] == sum(out["input_lens"])
    assert set(out["output_lens"]) == {6}
    for name, total in (("prompt_tokens", "total_input_tokens"), ("generation_tokens", "total_output_tokens")):
        assert server.metric(f"deepinfer_{name}_sum") - counted[name] == out[total]
    for figure in FIGURES:
        assert 0 < out[f"median_{figure}_ms"] <= out[f"p99_{figure}_ms"]
        assert out[f"p50_{figure}_ms"] == out[f"median_{figure}_ms"]
    assert all(ttft <= latency for ttft, latency in zip(out["ttfts"], out["latencies"], strict=True))
    assert out["request_goodput"] == pytest.approx(out["request_throughput"])


def test_chats_and_a_table(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    args = ("--endpoint", "/v1/chat/completions", "--num-prompts", 3, "--input-len", 4, "--output-len", 3)
    table = ok("bench", "serve", "--url", server.url, *args, "--json", file)
    assert "3 completed, 0 refused, 0 failed" in table and "time to first token" in table
    assert json.loads(file.read_text())["endpoint_type"] == "openai-chat"


def test_prefixes_hit_the_cache(server: Server) -> None:
    def cached() -> float:
        rows = server.get("/metrics").body.decode().splitlines()
        return next(float(r.split()[1]) for r in rows if 'by_source_total{source="device"}' in r)

    before = cached()
    args = ("--num-prompts", 4, "--max-concurrency", 1, "--input-len", 40, "--prefix-len", 512, "--output-len", 1)
    assert bench(server.url, *args)["completed"] == 4
    assert cached() - before >= 3 * 384


def test_refusals_are_counted_apart(server: Server) -> None:
    with Server("--access-log", "off", "--max-requests", 1) as small:
        out = bench(small.url, "--num-prompts", 6, "--input-len", 20, "--output-len", 20)
    assert out["completed"] + out["refused"] == 6 and out["refused"] > 0
    assert out["failed"] == out["refused"] and out["errors_by_kind"] == {}
    assert 0 < out["max_refusal_ms"]


def test_a_server_with_tls_shows_who_it_is(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "localhost")
    server = Server("--access-log", "off", "--tls-cert", cert, "--tls-key", key)
    try:
        wait_until(lambda: any(line.endswith("ready\n") for line in server.log))
        url = f"https://localhost:{server.port}"
        out = bench(url, "--tls-ca", cert, "--num-prompts", 8, "--max-concurrency", 2, "--output-len", 3)
        assert (out["completed"], out["failed"], out["total_output_tokens"]) == (8, 0, 24)
        refused("bench", "serve", "--url", url, names=("no TLS connection", "verify"))
        # The certificate is for a name, not for the address.
        address = f"https://127.0.0.1:{server.port}"
        refused("bench", "serve", "--url", address, "--tls-ca", cert, names=("no TLS connection", "verify"))
        refused("bench", "serve", "--url", f"http://localhost:{server.port}", names="closed without an answer")
    finally:
        server.process.terminate()
        assert server.process.wait(timeout=60) == 0


@contextmanager
def wrong_server(stream: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(stream)

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


TEXT = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    "stream, named",
    [
        (TEXT + END, "[DONE]"),
        (TEXT + END + b"data: [DONE]", "[DONE]"),
        (TEXT + b"data: [DONE]\n\n", "finish reason"),
        (b'data: {"error": {"message": "broken"}}\n\ndata: [DONE]\n\n', "broken"),
        (b"data: {\n\n" + END + b"data: [DONE]\n\n", "JSON"),
    ],
)
def test_a_stream_that_is_not_whole_has_failed(stream: bytes, named: str) -> None:
    with wrong_server(stream) as url:
        out = bench(url, "--num-prompts", 1)
    assert (out["completed"], out["failed"]) == (0, 1)
    assert named in next(iter(out["errors_by_kind"]))


def test_a_whole_stream_without_usage_is_counted_by_its_texts() -> None:
    with wrong_server(TEXT + TEXT + END + b"data: [DONE]\n\n") as url:
        out = bench(url, "--num-prompts", 1)
    assert (out["completed"], out["total_output_tokens"]) == (1, 2)


@pytest.mark.parametrize(
    "args, named",
    [
        (("--url", "127.0.0.1"), "http://HOST:PORT"),
        (("--url", "http://127.0.0.1:1"), "no connection"),
        (("--url", "https://127.0.0.1:1", "--tls-ca", "/nothing.pem"), "/nothing.pem"),
        (("--request-rate", "0"), "--request-rate"),
        (("--input-len", "many"), "--input-len"),
        (("--token-ids", "9:1"), "--token-ids"),
        (("--goodput", "speed:1"), "speed"),
        (("--extra-body", "[]"), "--extra-body"),
        (("--trace", "/nothing"), "/nothing"),
    ],
)
def test_what_cannot_be_used_is_named(args: tuple[str, ...], named: str) -> None:
    refused("bench", "serve", *args, names=named)
