"""A long session of an agent: forty turns of tool calls with awkward arguments, each turn built on the one before."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from server import Json, Server, join_chat

TURNS = 40
BLOCK = 128  # the cache's unit
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"
]
AWKWARD: list[object] = [
    'quote " and \\ backslash',
    "line\nbreak\ttab",
    "ünïcödé 🦊 漢字",
    "<｜DSML｜ invoke name=x>",
    "</think> and <think>",
    '{"json": ["inside", {"a": 1}]}',
    "",
    "   spaces   ",
    {"z": 1, "a": {"deep": [1, 2, {"y": None}]}},
    [True, False, None, -0.5, 10**15],
    12345678901234567890,
    "<｜end▁of▁sentence｜>",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--access-log", "off", "--drafts", 0) as s:  # the model is told what to write
        yield s


def as_message(content: str, calls: list[tuple[str, str, str]]) -> Json:
    """An assistant message with calls of (id, name, arguments)."""
    functions = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": content, "tool_calls": functions}


def respelled(arguments: str) -> str:
    """The same JSON as another client might write it: members sorted, other spaces, escapes for what is not ASCII."""
    return json.dumps(json.loads(arguments), sort_keys=True, separators=(" ,", ":"))


def results(calls: list[tuple[str, str, str]], text: str) -> list[Json]:
    return [{"role": "tool", "tool_call_id": i, "content": text} for i, _, _ in calls]


def written(server: Server, chat: Json, message: Json, calls: list[tuple[str, str, str]]) -> list[int]:
    """The tokens by which a model writes this message: those of the prompt that has it in its history."""
    before = server.ok("/render", chat)["tokens"]
    after = server.ok("/render", {**chat, "messages": [*chat["messages"], message, *results(calls, "")]})["tokens"]
    assert after[: len(before)] == before
    end = after.index(server.tokens("<｜end▁of▁sentence｜>")[0], len(before))
    return after[len(before) : end]


def test_forty_turns_with_awkward_arguments(server: Server) -> None:
    rng = random.Random(4)
    messages: list[Json] = [{"role": "system", "content": "You call tools."}, {"role": "user", "content": "Begin."}]
    before = 0
    for turn in range(TURNS):
        calls = []
        for number in range(2 if turn % 5 == 4 else 1):
            keys = rng.sample(["z", "a", "key with space", "ключ", "m_1"], rng.randint(0, 2))
            arguments = {k: rng.choice(AWKWARD) for k in keys}
            calls.append((f"c{number}", "fg"[number], json.dumps(arguments, ensure_ascii=False)))
        chat: Json = {"messages": messages, "tools": TOOLS, "thinking": {"type": "disabled"}}
        ids = written(server, chat, as_message(f"Turn {turn}.", calls), calls)
        body = {**chat, "golden_token_ids": ids, "max_tokens": len(ids) + 8, "stream_options": {"include_usage": True}}
        events = server.stream("/v1/chat/completions", body)
        answer = join_chat(events)
        usage = events[-2].json["usage"]
        assert answer.finish == "tool_calls" and answer.content == f"Turn {turn}."
        assert [(c["name"], c["arguments"]) for c in answer.calls] == [(n, a) for _, n, a in calls]
        # Everything up to the end of the turn before comes from the cache, rounded to its unit; the tail of the prompt
        # on which the decoder half runs is always computed, and a hit of one block would save nothing.
        expected = min(before, usage["prompt_tokens"] - 140) // BLOCK * BLOCK
        if expected > BLOCK:
            assert usage["prompt_cache_hit_tokens"] >= expected, (turn, before, usage)
        before = usage["prompt_tokens"] + usage["completion_tokens"]
        made = [(c["id"], c["name"], respelled(c["arguments"])) for c in answer.calls]
        messages += [as_message(answer.content, made), *results(made, f"result {rng.choice(AWKWARD)}")]
