"""The admin port: load, log level, step trace, reload, drain."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import threading
import time
from pathlib import Path

from server import Json, Reply, Server, wait_until

STORY: Json = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


def admin(server: Server, method: str, path: str, body: Json | None = None, key: str = "") -> Reply:
    found = [m[1] for line in server.log if (m := re.match(r"admin\s+http://127.0.0.1:(\d+)", line))]
    assert found, server.log
    connection = http.client.HTTPConnection("127.0.0.1", int(found[0]), timeout=60)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection.request(method, path, body=json.dumps(body).encode() if body is not None else None, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, content)


def start(*args: object) -> Server:
    server = Server("--access-log", "off", "--admin-port", 0, *args)
    wait_until(lambda: any(line.startswith("admin      http") for line in server.log))
    return server


def test_the_step_trace_holds_steps_and_requests() -> None:
    with start() as server:
        for i in range(3):
            server.post("/v1/completions", STORY, {"x-request-id": f"mine-{i}"})
        reply = admin(server, "GET", "/trace")
        assert reply.status == 200 and "attachment" in reply.headers["content-disposition"]
        events = reply.json["traceEvents"]
        steps = [e for e in events if e["name"] == "step"]
        assert len(steps) > 3 and all(e["args"]["rows"] > 0 for e in steps)
        assert all(a["ts"] <= b["ts"] for a, b in zip(steps, steps[1:], strict=False))
        inner = [e for e in events if e["name"] == "forward"]
        assert len(inner) == len(steps) and all(0 < f["dur"] <= s["dur"] for f, s in zip(inner, steps, strict=True))
        begins = {e["args"]["id"]: e["ts"] for e in events if e["name"] == "request" and e["ph"] == "b"}
        ends = {e["args"]["id"]: e["ts"] for e in events if e["name"] == "request" and e["ph"] == "e"}
        for i in range(3):
            within = [s for s in steps if begins[f"mine-{i}"] <= s["ts"] <= ends[f"mine-{i}"]]
            assert within  # one clock


def test_load_and_log_level() -> None:
    with start() as server:
        assert admin(server, "GET", "/load").json["status"] == "ready"
        assert b"deepinfer_requests_running" in admin(server, "GET", "/metrics").body
        assert admin(server, "GET", "/log_level").json["level"] == "info"
        assert admin(server, "POST", "/log_level", {"level": "error"}).json["level"] == "error"
        bad = admin(server, "POST", "/log_level", {"level": "loud"})
        assert bad.status == 400 and bad.json["error"]["param"] == "level"
        assert admin(server, "GET", "/v1/models").status == 404
        assert server.get("/trace").status == 404


def test_keys_are_reloaded_by_those_who_may(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna first-key\nroot root-key admin\n")
    with start("--keys", keys) as server:
        assert admin(server, "GET", "/load").status == 401
        assert admin(server, "GET", "/load", key="first-key").status == 403
        keys.write_text("anna second-key\nroot root-key admin\n")
        assert admin(server, "POST", "/reload", key="root-key").status == 200
        assert server.get("/v1/models", {"Authorization": "Bearer second-key"}).status == 200
        assert server.get("/v1/models", {"Authorization": "Bearer first-key"}).status == 401
        keys.write_text("anna\n")
        broken = admin(server, "POST", "/reload", key="root-key")
        assert broken.status == 409 and "keys" in broken.json["error"]["message"]
        assert server.get("/v1/models", {"Authorization": "Bearer second-key"}).status == 200


def test_drain_ends_the_process() -> None:
    with start() as server:
        connection = server.connect()
        data = json.dumps({**STORY, "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        got = connection.recv(100)
        assert admin(server, "POST", "/drain").status == 202
        while b"0\r\n\r\n" not in got[-50:]:
            got += connection.recv(65536)
        assert b"data: [DONE]" in got
        connection.close()
        assert server.process.wait(timeout=60) == 0


def test_traces_go_to_a_collector() -> None:
    bodies: list[Json] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    begin = time.time_ns()
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with Server("--access-log", "off", "--otlp", f"http://127.0.0.1:{collector.server_port}") as server:
        server.post("/v1/completions", STORY, {"traceparent": f"00-{trace}-{parent}-01", "x-request-id": "mine"})
        server.post("/v1/completions", STORY, {"traceparent": "nonsense"})
        wait_until(lambda: len(spans_of(bodies)) == 2)
    collector.shutdown()
    mine, other = spans_of(bodies)
    assert (mine["traceId"], mine["parentSpanId"]) == (trace, parent)
    assert re.fullmatch("[0-9a-f]{32}", other["traceId"]) and "parentSpanId" not in other
    attributes = {a["key"]: next(iter(a["value"].values())) for a in mine["attributes"]}
    assert attributes["deepinfer.request_id"] == "mine" and attributes["gen_ai.usage.output_tokens"] == "8"
    times = [begin, *(int(mine[n]) for n in ("startTimeUnixNano", "endTimeUnixNano")), time.time_ns()]
    assert times == sorted(times)
    assert times[1] <= int(mine["events"][0]["timeUnixNano"]) <= times[2]


def spans_of(bodies: list[Json]) -> list[Json]:
    return [s for b in bodies for r in b["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]


def test_a_collector_that_is_not_there_holds_nothing_up() -> None:
    with Server("--access-log", "off", "--otlp", "http://127.0.0.1:1") as server:
        assert server.post("/v1/completions", STORY).status == 200
        wait_until(lambda: any("are dropped" in line for line in server.log))
        assert server.post("/v1/completions", STORY).status == 200


def test_there_is_no_admin_port_unless_asked_for() -> None:
    with Server("--access-log", "off") as server:
        assert not any(line.startswith("admin      http") for line in server.log)
        reply = server.post("/drain", {})
        assert reply.status == 501 and "--admin-port" in reply.json["error"]["message"]
