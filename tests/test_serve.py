"""The service over raw HTTP: what it answers, what it refuses, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import BINARY, ROOT, TINY
from server import Json, Server, join_chat, parse_events, wait_until

STORY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
CHAT: Json = {
    "messages": [{"role": "user", "content": "What is 17 + 25?"}],
    "thinking": {"type": "disabled"},
    "max_tokens": 24,
    "temperature": 0,
}
LONG = {"prompt": "Once upon a time", "max_tokens": 3000, "temperature": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = ("--max-body-mb", 1, "--header-timeout", 1, "--write-timeout", 2, "--max-buffered-kb", 64)
    with Server("--access-log", "off", *limits) as s:
        yield s


def error_of(reply: Any, status: int) -> Json:
    assert reply.status == status, (reply.status, reply.body)
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


# ---- answers --------------------------------------------------------------------------------------------------------


def test_health_and_version(server: Server) -> None:
    assert server.get("/live").status == 200
    assert server.get("/health").json == {"status": "ready"}
    assert server.get("/version").json["version"]
    load = server.get("/load").json
    assert load["running"] == 0 and load["blocks"] > 0


def test_models(server: Server) -> None:
    models = server.get("/v1/models").json
    assert re.fullmatch(r"[0-9a-f]{32}", models["data"][0]["namespace_digest"])
    assert [m["id"] for m in models["data"]] == ["tiny"]
    assert models["data"][0]["max_model_len"] > 0
    assert server.get("/v1/models/tiny").json["id"] == "tiny"
    assert error_of(server.get("/v1/models/large"), 404)["code"] == "model_not_found"


def test_a_stream_gives_the_text_of_the_whole_answer(server: Server) -> None:
    whole = server.ok("/v1/completions", STORY)
    choice = whole["choices"][0]
    assert choice["text"] and choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 24
    events = server.stream("/v1/completions", {**STORY, "stream_options": {"include_usage": True}})
    assert events[-1].data == "[DONE]"
    chunks = [e.json for e in events[:-1]]
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == choice["text"]
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "length"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 24
    assert all(c["id"] == chunks[0]["id"] for c in chunks)


def test_chat_whole_and_streamed(server: Server) -> None:
    whole = server.ok("/v1/chat/completions", CHAT)
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant" and "42" in message["content"]
    assert whole["choices"][0]["finish_reason"] == "stop"
    streamed = join_chat(server.stream("/v1/chat/completions", CHAT))
    assert streamed.content == message["content"] and streamed.finish == "stop"


def test_reasoning_is_apart(server: Server) -> None:
    body = {**CHAT, "thinking": {"type": "enabled"}, "max_tokens": 64}
    message = server.ok("/v1/chat/completions", body)["choices"][0]["message"]
    assert "</think>" not in message["content"] and "<think>" not in (message["reasoning_content"] or "")
    streamed = join_chat(server.stream("/v1/chat/completions", body))
    assert (streamed.content, streamed.reasoning) == (message["content"], message["reasoning_content"] or "")
    usage = server.ok("/v1/chat/completions", body)["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"]


def test_a_prefix_is_continued(server: Server) -> None:
    begun = {"role": "assistant", "content": "17 + 25 =", "prefix": True}
    body = {**CHAT, "messages": [*CHAT["messages"], begun]}
    assert server.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"].startswith(" 42")


def test_choices_prompts_and_token_ids(server: Server) -> None:
    ids = server.ok("/tokenize", {"prompt": "Once upon a time"})["tokens"]
    body = {**STORY, "prompt": [ids, ids], "n": 2, "return_token_ids": True}
    whole = server.ok("/v1/completions", body)
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    assert {c["text"] for c in whole["choices"]} == {server.ok("/v1/completions", STORY)["choices"][0]["text"]}
    assert len(whole["choices"][3]["token_ids"]) == 24
    assert whole["usage"]["prompt_tokens"] == 2 * len(ids)


def test_tokens_in_and_tokens_out(server: Server) -> None:
    ids = server.tokens("Once upon a time")
    body = {"token_ids": ids, "max_tokens": 12, "temperature": 0}
    whole = server.ok("/v1/generate", {**body, "logprobs": 2})
    choice = whole["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]) == whole["usage"]["completion_tokens"] == 12
    assert all(len(entry["top"]) == 2 for entry in choice["logprobs"])
    text = server.ok("/v1/completions", {"prompt": ids, "max_tokens": 12, "temperature": 0})["choices"][0]["text"]
    assert server.ok("/detokenize", {"tokens": choice["token_ids"]})["prompt"] == text
    events = server.stream("/v1/generate", body)
    assert events[-1].data == "[DONE]"
    chunks = [c for e in events[:-1] for c in e.json["choices"]]
    assert [i for c in chunks for i in c["token_ids"]] == choice["token_ids"]
    assert [c["finish_reason"] for c in chunks if c["finish_reason"]] == ["length"]


def test_seeds_repeat_and_differ(server: Server) -> None:
    def text(seed: int) -> str:
        return server.ok("/v1/completions", {**STORY, "temperature": 1, "seed": seed})["choices"][0]["text"]

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_stop_strings_end_the_text_before_them(server: Server) -> None:
    full = server.ok("/v1/completions", STORY)["choices"][0]["text"]
    stop = full[10:14]
    choice = server.ok("/v1/completions", {**STORY, "stop": stop})["choices"][0]
    assert choice["text"] == full[: full.index(stop)] and choice["finish_reason"] == "stop"
    chat = server.ok("/v1/chat/completions", {**CHAT, "stop": ["= 4"]})["choices"][0]
    assert chat["message"]["content"] == "17 + 25 " and chat["finish_reason"] == "stop"


def test_timings_on_demand(server: Server) -> None:
    for path, body in (("/v1/completions", STORY), ("/v1/chat/completions", CHAT)):
        timings = server.ok(path, {**body, "timings": True})["timings"]
        assert 0 < timings["first_token_ms"] <= timings["total_ms"]
        chunks = [e.json for e in server.stream(path, {**body, "timings": True})[:-1]]
        assert [c for c in chunks if "timings" in c] == chunks[-1:]
        assert "timings" not in server.ok(path, body)


def test_log_probabilities(server: Server) -> None:
    chat = server.ok("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3})
    content = chat["choices"][0]["logprobs"]["content"]
    assert len(content) == chat["usage"]["completion_tokens"]
    assert all(len(t["top_logprobs"]) == 3 and t["logprob"] <= 0 for t in content)
    assert content[0]["logprob"] == max(t["logprob"] for t in content[0]["top_logprobs"])
    streamed = server.stream("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3})
    chunks = [c for e in streamed[:-1] for c in e.json["choices"] if c["logprobs"]]
    assert [t["token"] for c in chunks for t in c["logprobs"]["content"]] == [t["token"] for t in content]
    legacy = server.ok("/v1/completions", {**STORY, "logprobs": 2, "echo": True})["choices"][0]
    logprobs = legacy["logprobs"]
    assert legacy["text"].startswith("Once upon a time") and logprobs["token_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"])


def test_the_cache_is_counted(server: Server) -> None:
    prompt = "The dog and the cat went to the park. " * 40
    body = {**STORY, "prompt": prompt, "max_tokens": 1}
    server.ok("/v1/completions", body)
    usage = server.ok("/v1/completions", body)["usage"]
    assert usage["prompt_cache_hit_tokens"] >= 128
    assert usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"] == usage["prompt_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_cache_hit_tokens"]
    salted = server.ok("/v1/completions", {**body, "cache_salt": "other"})["usage"]
    assert salted["prompt_cache_hit_tokens"] == 0
    off = server.ok("/v1/completions", {**body, "cache_mode": "off"})["usage"]
    assert off["prompt_cache_hit_tokens"] == 0


def test_an_exact_hit_gives_the_answer_of_a_cold_run(server: Server) -> None:
    body = {**STORY, "prompt": "A bird sat in the tree. " * 300, "cache_mode": "exact", "cache_keep": 60, "priority": 3}
    cold = server.ok("/v1/completions", body)
    hit = server.ok("/v1/completions", body)
    assert hit["choices"] == cold["choices"]
    assert cold["usage"]["prompt_cache_hit_tokens"] == 0 < hit["usage"]["prompt_cache_hit_tokens"]


def test_a_gap_is_filled_between_prefix_and_suffix(server: Server) -> None:
    body = {**STORY, "suffix": " The end."}
    answer = server.ok("/v1/completions", body)
    ids = server.tokens("<｜begin▁of▁sentence｜><｜fim▁begin｜>Once upon a time<｜fim▁hole｜> The end.<｜fim▁end｜>")
    assert answer["usage"]["prompt_tokens"] == len(ids)
    direct = server.ok("/v1/completions", {**STORY, "prompt": ids})
    assert answer["choices"][0]["text"] == direct["choices"][0]["text"]


def test_tokenize_and_back(server: Server) -> None:
    text = "Héllo <|x|> wörld 🦊"
    ids = server.ok("/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True})
    assert ids["count"] == len(ids["tokens"]) == len(ids["token_strs"])
    assert server.ok("/detokenize", {"tokens": ids["tokens"]})["prompt"] == text
    rendered = server.ok("/render", CHAT)
    assert server.ok("/tokenize", CHAT)["tokens"] == rendered["tokens"]
    assert rendered["prompt"].startswith("<｜begin▁of▁sentence｜>")
    marked = [rendered["prompt"].encode()[a:b].decode() for a, b in rendered["messages"]]
    assert marked == ["<｜User｜>" + m["content"] for m in CHAT["messages"]]


def test_control_strings_of_users_stay_text(server: Server) -> None:
    plain = server.ok("/tokenize", {"prompt": "<｜User｜>", "add_special_tokens": False})["tokens"]
    control = server.tokens("<｜User｜>")
    assert len(control) == 1 and len(plain) > 1
    chat = {**CHAT, "messages": [{"role": "user", "content": "<｜User｜>"}]}
    assert server.ok("/render", chat)["tokens"].count(control[0]) == 1


def test_a_tool_call_is_parsed_and_answered(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    written = (
        'I will add.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="add">\n'
        '<｜DSML｜ parameter name="a" string="false">1</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="b" string="true">"t\\wo" 🦊</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )
    body = {**CHAT, "tools": tools, "golden_token_ids": server.tokens(written), "max_tokens": 400}
    choice = server.ok("/v1/chat/completions", body)["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "I will add."
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": '"t\\wo" 🦊'}
    streamed = join_chat(server.stream("/v1/chat/completions", body))
    assert streamed.calls[0]["arguments"] == call["function"]["arguments"] and streamed.finish == "tool_calls"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
    again = {**CHAT, "tools": tools, "messages": [*CHAT["messages"], choice["message"], result]}
    assert server.ok("/v1/chat/completions", again)["choices"][0]["finish_reason"] in ("stop", "length")


SCHEMA: Json = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}, "is_big": {"type": "boolean"}},
    "required": ["colour", "is_big"],
    "additionalProperties": False,
}


def test_a_schema_is_kept(server: Server) -> None:
    body = {
        **CHAT,
        "max_tokens": 200,
        "temperature": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    }
    for seed in range(3):
        choice = server.ok("/v1/chat/completions", {**body, "seed": seed})["choices"][0]
        answer = json.loads(choice["message"]["content"])
        assert set(answer) == {"colour", "is_big"} and answer["colour"] in ("red", "green")
        streamed = join_chat(server.stream("/v1/chat/completions", {**body, "seed": seed}))
        assert streamed.content == choice["message"]["content"]


def test_json_objects(server: Server) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "Answer in JSON."}], "max_tokens": 300}
    choice = server.ok("/v1/chat/completions", {**body, "response_format": {"type": "json_object"}})["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert choice["message"]["content"].startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_a_tool_can_be_required(server: Server, choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": "paint", "parameters": SCHEMA, "strict": True}}]
    body = {**CHAT, "tools": tools, "tool_choice": choice, "max_tokens": 400, "temperature": 1, "seed": 3}
    answer = server.ok("/v1/chat/completions", {**body, "parallel_tool_calls": False})["choices"][0]
    assert answer["finish_reason"] == "tool_calls" and len(answer["message"]["tool_calls"]) == 1
    function = answer["message"]["tool_calls"][0]["function"]
    assert function["name"] == "paint"
    assert set(json.loads(function["arguments"])) == {"colour", "is_big"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_used_is_named(server: Server, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "colour"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = server.post("/v1/chat/completions", {**CHAT, "response_format": response_format, "stream": stream})
    error = error_of(reply, 400)
    assert "colour" in error["message"] and error["param"] == "response_format"


# ---- refusals -------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, Json, str, str]] = [
    ("/v1/chat/completions", {"temperature": -1}, "temperature", "-1"),
    ("/v1/chat/completions", {"temperature": "hot"}, "temperature", "'hot'"),
    ("/v1/chat/completions", {"top_p": 2}, "top_p", "2"),
    ("/v1/chat/completions", {"n": 0}, "n", "1 to 128"),
    ("/v1/chat/completions", {"max_tokens": 0}, "max_tokens", "0"),
    ("/v1/chat/completions", {"max_tokens": 10**8}, "max_tokens", "100000000"),
    ("/v1/chat/completions", {"stop": [""]}, "stop", "non-empty"),
    ("/v1/chat/completions", {"stop": ["a"] * 17}, "stop", "16"),
    ("/v1/chat/completions", {"seed": -5}, "seed", "-5"),
    ("/v1/chat/completions", {"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
    ("/v1/chat/completions", {"logit_bias": {"3": 101}}, "logit_bias.3", "101"),
    ("/v1/chat/completions", {"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ("/v1/chat/completions", {"stream": "yes"}, "stream", "'yes'"),
    ("/v1/chat/completions", {"messages": []}, "messages", "at least one"),
    ("/v1/chat/completions", {"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role", "wizard"),
    ("/v1/chat/completions", {"thinking": {"type": "often"}}, "thinking.type", "often"),
    ("/v1/chat/completions", {"reasoning_effort": "heroic"}, "reasoning_effort", "heroic"),
    ("/v1/chat/completions", {"tools": [{"type": "x"}]}, "tools[0]", "function"),
    ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice", "tools"),
    ("/v1/chat/completions", {"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ("/v1/chat/completions", {"cache_mode": "warm"}, "cache_mode", "'warm'"),
    ("/v1/chat/completions", {"deadline_ms": 0}, "deadline_ms", "0"),
    ("/v1/chat/completions", {"audio": {"voice": "x"}}, "audio", "text only"),
    ("/v1/chat/completions", {"model": "other"}, "model", "tiny"),
    ("/v1/completions", {"prompt": []}, "prompt", "list of 0"),
    ("/v1/completions", {"prompt": [1, -2]}, "prompt[1]", "-2"),
    ("/v1/completions", {"prompt": [1, 10**6]}, "prompt", "1000000"),
    ("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True}, "echo", "suffix"),
    ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs", "21"),
    ("/v1/generate", {"token_ids": []}, "token_ids", "at least one"),
    ("/v1/generate", {"token_ids": [1], "stop": "a"}, "stop", "stop_token_ids"),
    ("/tokenize", {"prompt": "a", "messages": []}, "prompt", "exactly one"),
    ("/detokenize", {"tokens": [5000]}, "tokens[0]", "5000"),
]


@pytest.mark.parametrize(("path", "change", "param", "named"), BAD)
def test_a_bad_field_is_named(server: Server, path: str, change: Json, param: str, named: str) -> None:
    body = {**CHAT, **change} if path.startswith("/v1/chat") else change
    reply = server.post(path, body)
    error = error_of(reply, 404 if param == "model" else 400)
    if param != "prompt":
        assert error["param"] == param
    assert named in error["message"], error["message"]


def test_images_are_refused_by_name(server: Server) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]}
    error = error_of(server.post("/v1/chat/completions", body), 400)
    assert error["param"] == "messages[0].content[1]" and error["code"] == "images_not_supported"


def test_context_overflow_names_both_counts(server: Server) -> None:
    limit = server.get("/v1/models").json["data"][0]["max_model_len"]
    error = error_of(server.post("/v1/completions", {"prompt": [5] * (limit + 7)}), 400)
    assert error["code"] == "context_length_exceeded"
    assert str(limit + 7) in error["message"] and str(limit) in error["message"]
    error = error_of(server.post("/v1/completions", {"prompt": [5] * 10, "max_tokens": limit}), 400)
    assert error["param"] == "max_tokens" and str(limit) in error["message"]


def test_unknown_fields_are_accepted_and_named(server: Server) -> None:
    known = {"session_id": "s", "metadata": {"a": "b"}, "user": "u"}  # of no effect here
    reply = server.post("/v1/completions", {**STORY, **known, "max_tokens": 1, "colour": "red", "a\r\nb: c": 1})
    assert reply.status == 200
    assert reply.headers["x-deepinfer-unknown-fields"] == "colour, a??b??c"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b"[" * 5000, b'{"prompt": 1e999}'])
def test_bodies_that_are_no_request(server: Server, body: bytes) -> None:
    error_of(server.post("/v1/completions", body), 400)
    error_of(server.post("/v1/chat/completions", body), 400)


def test_paths_and_methods(server: Server) -> None:
    assert error_of(server.get("/v1/nothing"), 404)["code"] == "not_found"
    assert "POST" in error_of(server.get("/v1/completions"), 405)["message"]


def test_a_large_body_is_refused_before_it_is_read(server: Server) -> None:
    error = error_of(server.post("/v1/completions", b"x" * (3 << 20)), 413)
    assert str(1 << 20) in error["message"]


def test_request_ids(server: Server) -> None:
    assert server.get("/live", {"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert server.get("/live", {"X-Request-Id": "not good"}).headers["x-request-id"].startswith("req-")


# ---- HTTP -----------------------------------------------------------------------------------------------------------


def raw(server: Server, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes."""
    with server.connect() as s:
        s.sendall(data)
        out = b""
        while piece := s.recv(65536):
            out += piece
        return out


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    one = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = raw(server, one * 3 + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert answer.rindex(b"version") < answer.index(b'"live"')


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"GET nothing HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 40000 + b"\r\n\r\n", b"431"),
        (b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /live HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_odd_requests_are_answered_and_closed(server: Server, data: bytes, status: bytes) -> None:
    assert raw(server, data).split(b" ")[1] == status


def test_slow_headers_and_slow_bodies_time_out(server: Server) -> None:
    assert raw(server, b"GET /live HTT").split(b" ")[1] == b"408"
    assert raw(server, b"POST /tokenize HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc").split(b" ")[1] == b"408"


def test_expect_continue(server: Server) -> None:
    with server.connect() as s:
        body = json.dumps({"prompt": "a"}).encode()
        head = f"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        s.sendall(head.encode())
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert s.recv(10000).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_leaves_at_any_byte_disturbs_nobody(server: Server) -> None:
    body = json.dumps({**STORY, "max_tokens": 2, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    whole = len(raw(server, head + body))
    for cut in range(len(head + body) + 1):
        with server.connect() as s:
            s.sendall((head + body)[:cut])
    for received in range(1, whole):
        with server.connect() as s:
            s.sendall(head + body)
            while received > 0 and (piece := s.recv(received)):
                received -= len(piece)
    wait_until(lambda: server.get("/load").json["requests"] == 0)
    assert server.ok("/v1/completions", STORY)["choices"][0]["finish_reason"] == "length"


# ---- cancellation ---------------------------------------------------------------------------------------------------


def open_stream(server: Server, body: Json, request_id: str = "") -> socket.socket:
    data = json.dumps({**body, "stream": True}).encode()
    s = server.connect()
    extra = f"X-Request-Id: {request_id}\r\n" if request_id else ""
    s.sendall(f"POST /v1/completions HTTP/1.1\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return s


def test_closing_the_connection_cancels(server: Server) -> None:
    with open_stream(server, LONG) as s:
        s.recv(2000)
        assert server.get("/load").json["requests"] == 1
    wait_until(lambda: server.get("/load").json["requests"] == 0)
    wait_until(lambda: server.get("/load").json["running"] == 0)


def test_a_request_that_waits_for_its_whole_answer_is_cancelled_too(server: Server) -> None:
    data = json.dumps(LONG).encode()
    with server.connect() as s:
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        wait_until(lambda: server.get("/load").json["running"] == 1)
    wait_until(lambda: server.get("/load").json["running"] == 0)


def test_cancellation_by_id(server: Server) -> None:
    with open_stream(server, LONG, "cancel-me") as s:
        first = s.recv(2000)
        answer = server.post("/v1/cancel/cancel-me", b"").json
        assert answer == {"id": "cancel-me", "cancelled": True}
        rest = first
        while b"0\r\n\r\n" not in rest:
            rest += s.recv(65536)
        assert b'"code":"cancelled"' in rest and b"data: [DONE]" in rest
    assert server.post("/v1/cancel/cancel-me", b"").json["cancelled"] is False


def test_a_response_is_cancelled_by_its_id(server: Server) -> None:
    body = {"input": "Tell me a story.", "max_output_tokens": 3000, "temperature": 1, "stream": True}
    data = json.dumps(body).encode()
    with server.connect() as s:
        s.sendall(f"POST /v1/responses HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        got = b""
        while not (found := re.search(rb'"id":"(resp_[a-z0-9]+)"', got)):
            got += s.recv(2000)
        reply = server.post(f"/v1/responses/{found[1].decode()}/cancel", b"")
        assert reply.json["status"] == "cancelled"
        while b"0\r\n\r\n" not in got:
            got += s.recv(65536)
        assert b'"code":"cancelled"' in got
    wait_until(lambda: server.get("/load").json["running"] == 0)
    error_of(server.post("/v1/responses/resp_none/cancel", b""), 404)


def test_a_deadline_ends_a_request(server: Server) -> None:
    error = error_of(server.post("/v1/completions", {**LONG, "deadline_ms": 300}), 504)
    assert error["code"] == "deadline_exceeded"


def test_a_reader_that_does_not_read_is_dropped_and_slows_nobody(server: Server) -> None:
    before = server.metric("deepinfer_requests_cancelled_total")
    s = server.connect()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    data = json.dumps({**LONG, "stream": True, "logprobs": 20, "n": 4}).encode()
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    assert server.ok("/v1/completions", STORY)["choices"][0]["finish_reason"] == "length"
    wait_until(lambda: server.get("/load").json["requests"] == 0, seconds=60)
    assert server.metric("deepinfer_requests_cancelled_total") == before + 1
    s.close()


# ---- life -----------------------------------------------------------------------------------------------------------


def test_sigterm_lets_running_requests_end() -> None:
    with Server("--access-log", "off") as server:
        got: list[bytes] = []
        with open_stream(server, {**LONG, "max_tokens": 200}) as s:
            got.append(s.recv(500))
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.get("/ready").status == 503)
            refused = server.post("/v1/completions", STORY)
            assert refused.status == 503 and "retry-after" in refused.headers
            while piece := s.recv(65536):
                got.append(piece)
        text = b"".join(got)
        assert text.count(b'"finish_reason":"length"') == 1 and b"data: [DONE]" in text
        assert server.process.wait(timeout=30) == 0


def test_the_time_to_drain_is_bounded_and_ends_with_an_error_event() -> None:
    endless = {**LONG, "max_tokens": 6000}
    with Server("--access-log", "off", "--drain-time", 1) as server, open_stream(server, endless) as s:
        got = s.recv(500)
        server.process.send_signal(signal.SIGTERM)
        while piece := s.recv(65536):
            got += piece
        assert server.process.wait(timeout=30) == 0
        is_cut = b'"code":"shutting_down"' in got
        assert (is_cut or b'"finish_reason":"length"' in got) and b"data: [DONE]" in got


def test_a_second_signal_ends_at_once() -> None:
    with Server("--access-log", "off") as server, open_stream(server, LONG) as s:
        s.recv(500)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/ready").status == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=10) == 128 + signal.SIGTERM
        server.expects_exit = 128 + signal.SIGTERM


def test_the_address_in_use_is_named(server: Server) -> None:
    done = subprocess.run(
        [str(BINARY), "serve", "--model", str(TINY), "--port", str(server.port)], capture_output=True, timeout=60
    )
    assert done.returncode == 2 and str(server.port) in done.stderr.decode()


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BINARY), "serve", "--model", str(tmp_path), "--port", "0"], capture_output=True, timeout=60
    )
    assert done.returncode == 2 and str(tmp_path) in done.stderr.decode()


def test_many_streams_keep_their_own_text(server: Server) -> None:
    """Each of many concurrent streams gets the greedy answer to its own prompt."""
    names = ["Tom", "Lily", "Sam", "Anna", "Ben", "Mia", "Max", "Sue"]
    prompts = [f"One day {a} and {b} went out." for a in names for b in names[:2]]
    short = {**STORY, "max_tokens": 12}
    expected = {p: server.ok("/v1/completions", {**short, "prompt": p})["choices"][0]["text"] for p in prompts}
    got: dict[str, str] = {}

    def run(prompt: str) -> None:
        events = server.stream("/v1/completions", {**short, "prompt": prompt})
        got[prompt] = "".join(c["text"] for e in events[:-1] for c in e.json["choices"])

    threads = [threading.Thread(target=run, args=(p,)) for p in prompts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == expected


def test_the_page_has_a_policy(server: Server) -> None:
    page = server.get("/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert server.get("/page.css").headers["content-type"].startswith("text/css")
    assert server.get("/", {"If-None-Match": page.headers["etag"]}).status == 304


def test_metrics_are_in_prometheus_form(server: Server) -> None:
    text = server.get("/metrics").body.decode()
    names = "time_to_first_token_seconds_bucket inter_token_latency_seconds_sum requests_running build_info"
    for name in names.split():
        assert f"deepinfer_{name}" in text
    server.ok("/v1/completions", STORY)
    assert server.metric("deepinfer_generation_tokens_sum") >= 24
    paragraph = (ROOT / "docs/serving.md").read_text().partition("\n## Metrics\n\n")[2].partition("\n\n")[0]
    documented = re.findall(r"`([a-z]+(?:_[a-z0-9]+)*)`", paragraph)
    assert len(documented) > 10
    for name in documented:
        assert f"# TYPE deepinfer_{name} " in text, name


def test_metrics_follow_a_prompt_through_the_cache() -> None:
    text = "The dog and the cat went to the park. " * 40
    every_draft = {"DEEPINFER_ENABLE_MTP_VARLEN": "0"}  # whatever steps cost
    with Server("--access-log", "off", env=every_draft) as server:

        def growth(prompt: str) -> dict[str, float]:
            def values() -> dict[str, float]:
                text = server.get("/metrics").body.decode()
                return {name: float(value) for name, value in re.findall(r"^([^#].*) (\S+)$", text, re.M)}

            before = values()
            server.ok("/v1/completions", {**STORY, "prompt": prompt, "max_tokens": 200, "ignore_eos": True})
            after = values()
            grown = {n.removeprefix("deepinfer_"): v - before.get(n, 0) for n, v in after.items()}
            return {name: value for name, value in grown.items() if value != 0}

        cold, warm, short = growth(text), growth(text), growth("Once")
        assert cold['miss_cause_total{cause="new"}'] == 1 and "prefix_hits_total" not in str(cold)
        assert warm['prefix_hits_total{windows="replayed"}'] == 1 and "miss_cause" not in str(warm)
        assert short['miss_cause_total{cause="boundary"}'] == 1
        for grown in (cold, warm, short):
            assert grown['queue_time_seconds_count{stage="schedule"}'] == grown["prefill_time_seconds_count"] == 1
            first = grown["time_to_first_token_seconds_sum"]
            assert 0 < grown["prefill_time_seconds_sum"] < first
            assert grown.get('queue_time_seconds_sum{stage="schedule"}', 0) < first
            by_position = [v for name, v in grown.items() if name.startswith("accepted_at_position_total")]
            assert grown["accepted_tokens_total"] == sum(by_position) > 0
        assert 0 < server.metric("deepinfer_confidence_calibration_error") < 1
        assert server.metric("deepinfer_state_slots") > 0


def test_the_sse_parser_rejects_what_is_no_stream() -> None:
    with pytest.raises(AssertionError):
        parse_events(b"data: {}\n")
    with pytest.raises(AssertionError):
        parse_events(b"nonsense\n\n")
