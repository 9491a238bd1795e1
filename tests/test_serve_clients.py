"""The official clients of OpenAI and Anthropic against the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pydantic
import pytest
from server import Json, Server

QUESTION = "What is 17 + 25?"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
NO_THINKING: Json = {"thinking": {"type": "disabled"}}
GREEDY: Json = {"temperature": 0}


def call_text(name: str, arguments: Json, before: str = "") -> str:
    """What the model writes to call a tool."""
    parameters = "\n".join(
        f'<｜DSML｜ parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">'
        f"{v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}</｜DSML｜ parameter>"
        for k, v in arguments.items()
    )
    invoke = f'<｜DSML｜ invoke name="{name}">\n{parameters}\n</｜DSML｜ invoke>'
    return f"{before}\n\n<｜DSML｜ calls>\n{invoke}\n</｜DSML｜ calls>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("anna key-of-anna\nbert key-of-bert rpm=2\n")
    with Server("--access-log", "off", "--keys", keys) as s:
        yield s


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="key-of-anna", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def claude(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="key-of-anna", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def ids(client: openai.OpenAI, server: Server) -> Any:
    def of(text: str) -> list[int]:
        body = {"prompt": text, "parse_control_tokens": True, "add_special_tokens": False}
        return server.post("/tokenize", body, {"Authorization": "Bearer key-of-anna"}).json["tokens"]

    return of


# ---- OpenAI ---------------------------------------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_completion_tokens=24,
        extra_body=NO_THINKING,
    )
    assert "42" in (answer.choices[0].message.content or "")
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None


def test_chat_stream_with_reasoning_and_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    reasoning, finish, usage = "", None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
    assert reasoning and finish in ("stop", "length")
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text and logprobs is not None and len(logprobs.tokens or []) == 8


def test_tools_over_several_turns(client: openai.OpenAI, ids: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "Add numbers."}]
    for turn in range(3):
        arguments = {"a": turn, "b": turn + 0.5}
        written = ids(call_text("add", arguments, f"Step {turn}."))
        answer = client.chat.completions.create(
            model="tiny",
            messages=messages,
            tools=[TOOL],
            max_tokens=300,
            extra_body={**NO_THINKING, "golden_token_ids": written},
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        call: Any = choice.message.tool_calls[0]
        assert call.function.name == "add" and json.loads(call.function.arguments) == arguments
        messages += [choice.message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": str(sum(arguments.values()))}]


def test_a_streamed_tool_call(client: openai.OpenAI, ids: Any) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Add."}],
        tools=[TOOL],
        stream=True,
        max_tokens=300,
        extra_body={**NO_THINKING, "golden_token_ids": ids(call_text("add", {"a": 1, "b": 2}))},
    )
    name, arguments = "", ""
    for chunk in stream:
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert name == "add" and json.loads(arguments) == {"a": 1, "b": 2}


class Paint(pydantic.BaseModel):
    colour: Literal["red", "green"]
    is_big: bool


def test_structured_outputs(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    asked: Any = [{"role": "user", "content": "Which paint?"}]
    answer = client.chat.completions.parse(
        model="tiny", messages=asked, response_format=Paint, max_tokens=200, extra_body=NO_THINKING
    )
    assert isinstance(answer.choices[0].message.parsed, Paint)
    response = client.responses.parse(
        model="tiny", input=asked, text_format=Paint, max_output_tokens=200, reasoning={"effort": "none"}
    )
    assert isinstance(response.output_parsed, Paint)
    message = claude.messages.parse(model="tiny", max_tokens=200, messages=asked, output_format=Paint)
    assert isinstance(message.parsed_output, Paint)


def test_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(
        model="tiny", input=QUESTION, instructions="Be brief.", reasoning={"effort": "none"}, max_output_tokens=24
    )
    assert first.status in ("completed", "incomplete") and first.output_text
    second = client.responses.create(
        model="tiny",
        input="And 1 + 2?",
        previous_response_id=first.id,
        reasoning={"effort": "none"},
        max_output_tokens=24,
    )
    assert second.previous_response_id == first.id
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_stream_of_responses_builds_the_response(client: openai.OpenAI) -> None:
    events = list(
        client.responses.create(model="tiny", input=QUESTION, max_output_tokens=80, temperature=0, stream=True)
    )
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    last: Any = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    reasoning = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    assert text == last.response.output_text
    assert reasoning == "".join(c.text for o in last.response.output if o.type == "reasoning" for c in o.content)


def test_responses_call_tools(client: openai.OpenAI, ids: Any) -> None:
    tool: Any = {"type": "function", **TOOL["function"], "strict": False}
    first = client.responses.create(
        model="tiny",
        input="Add.",
        tools=[tool],
        reasoning={"effort": "none"},
        max_output_tokens=300,
        extra_body={"golden_token_ids": ids(call_text("add", {"a": 1, "b": 2}))},
    )
    call: Any = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"a": 1, "b": 2}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    second = client.responses.create(
        model="tiny",
        input=[result],
        previous_response_id=first.id,
        tools=[tool],
        reasoning={"effort": "none"},
        max_output_tokens=24,
    )
    assert second.output


def test_errors_reach_the_client_as_its_own(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}], temperature=-1)
    assert bad.value.param == "temperature" and "-1" in bad.value.message
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "a"}])
    wrong = openai.OpenAI(base_url=server.url + "/v1", api_key="key-of-nobody", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()


def test_a_rate_limit_says_when_to_come_back(server: Server) -> None:
    bert = openai.OpenAI(base_url=server.url + "/v1", api_key="key-of-bert", max_retries=0)
    for _ in range(2):
        bert.completions.create(model="tiny", prompt="a", max_tokens=1)
    with pytest.raises(openai.RateLimitError) as refused:
        bert.completions.create(model="tiny", prompt="a", max_tokens=1)
    assert int(refused.value.response.headers["retry-after"]) > 0


def test_a_closed_stream_is_cancelled(client: openai.OpenAI, server: Server) -> None:
    stream = client.completions.create(model="tiny", prompt="a", max_tokens=3000, stream=True)
    next(iter(stream))
    stream.close()
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices


# ---- Anthropic ------------------------------------------------------------------------------------------------------


def test_message(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model="tiny", max_tokens=24, messages=[{"role": "user", "content": QUESTION}], extra_body=GREEDY
    )
    block: Any = message.content[0]
    assert block.type == "text" and "42" in block.text
    assert message.stop_reason == "end_turn" and message.usage.output_tokens > 0


def test_message_with_thinking_streamed(claude: anthropic.Anthropic) -> None:
    body: Any = {
        "model": "tiny",
        "max_tokens": 80,
        "extra_body": GREEDY,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [{"role": "user", "content": QUESTION}],
    }
    whole = claude.messages.create(**body)
    with claude.messages.stream(**body) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert [b.model_dump() for b in final.content] == [b.model_dump() for b in whole.content]
    assert whole.content[0].type == "thinking" and final.stop_reason == whole.stop_reason


def test_message_tools_over_two_turns(claude: anthropic.Anthropic, ids: Any) -> None:
    tool: Any = {"name": "add", "input_schema": TOOL["function"]["parameters"]}
    messages: list[Any] = [{"role": "user", "content": "Add."}]
    for turn in range(2):
        arguments = {"a": turn, "b": 2}
        with claude.messages.stream(
            model="tiny",
            max_tokens=300,
            tools=[tool],
            messages=messages,
            extra_body={"golden_token_ids": ids(call_text("add", arguments, "So."))},
        ) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        call: Any = message.content[-1]
        assert call.type == "tool_use" and call.input == arguments
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]


def test_stop_sequences_prefill_and_counting(claude: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    stopped = claude.messages.create(
        model="tiny", max_tokens=24, messages=messages, stop_sequences=["= 4"], extra_body=GREEDY
    )
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "= 4"
    prefilled = claude.messages.create(
        model="tiny",
        max_tokens=24,
        extra_body=GREEDY,
        messages=[*messages, {"role": "assistant", "content": "17 + 25 ="}],
    )
    block: Any = prefilled.content[0]
    assert block.text.startswith(" 42")
    counted = claude.messages.count_tokens(model="tiny", messages=messages)
    assert counted.input_tokens == stopped.usage.input_tokens + (stopped.usage.cache_read_input_tokens or 0)


def test_message_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(
            model="tiny", max_tokens=8, messages=[{"role": "user", "content": "a"}], extra_body={"temperature": 2}
        )
    assert "temperature is 2" in str(bad.value)
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(model="tiny", max_tokens=8, messages=[{"role": "user", "content": [image]}])
    assert "messages[0].content[0]" in str(bad.value)
