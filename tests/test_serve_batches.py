"""Files and batches, by the official client."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from command import refused
from server import Json, Server

STORY: Json = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--access-log", "off") as s:
        yield s


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none")


def line(custom_id: str, body: Json, url: str = "/v1/completions", method: str = "POST") -> str:
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body})


def upload(client: openai.OpenAI, *lines: str) -> str:
    return client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch").id


def finish(client: openai.OpenAI, batch: str) -> openai.types.Batch:
    for _ in range(600):
        found = client.batches.retrieve(batch)
        if found.status in ("completed", "failed", "cancelled", "expired"):
            return found
        time.sleep(0.05)
    raise AssertionError("the batch did not end")


def lines_of(client: openai.OpenAI, file: str | None) -> dict[str, Json]:
    assert file is not None
    rows = [json.loads(row) for row in client.files.content(file).text.splitlines()]
    return {row["custom_id"]: row for row in rows}


def test_files_are_kept_listed_and_deleted(client: openai.OpenAI) -> None:
    data = bytes(range(256)) + b"\r\n--boundary\r\n"
    file = client.files.create(file=('odd "name".jsonl', data), purpose="batch")
    assert (file.bytes, file.purpose, file.object) == (len(data), "batch", "file")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == data
    assert file.id in [f.id for f in client.files.list()]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_batch_answers_every_line(client: openai.OpenAI, server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "thinking": {"type": "disabled"}}
    file = upload(client, *(line(f"r{i}", {**STORY, "max_tokens": 1 + i % 7}) for i in range(30)), line("bad", {}))
    batch = client.batches.create(
        input_file_id=file, endpoint="/v1/completions", completion_window="24h", metadata={"who": "me"}
    )
    done = finish(client, batch.id)
    assert done.status == "completed" and done.metadata == {"who": "me"}
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (31, 30, 1)
    rows = lines_of(client, done.output_file_id)
    assert set(rows) == {f"r{i}" for i in range(30)}
    for i in range(30):
        response = rows[f"r{i}"]["response"]
        assert response["status_code"] == 200 and rows[f"r{i}"]["error"] is None
        direct = server.ok("/v1/completions", {**STORY, "max_tokens": 1 + i % 7})
        assert response["body"]["choices"][0]["text"] == direct["choices"][0]["text"]
    failed = lines_of(client, done.error_file_id)["bad"]["response"]
    assert failed["status_code"] == 400 and failed["body"]["error"]["param"] == "prompt"

    file = upload(client, line("c", chat, "/v1/chat/completions"))
    done = finish(
        client, client.batches.create(input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h").id
    )
    assert lines_of(client, done.output_file_id)["c"]["response"]["body"]["object"] == "chat.completion"
    assert {batch.id, done.id} <= {b.id for b in client.batches.list()}


@pytest.mark.parametrize(
    ("lines", "code", "named"),
    [
        ((), "invalid_file", "0 requests"),
        (("{",), "invalid_json_line", "byte"),
        ((line("", STORY),), "invalid_line", "custom_id"),
        ((line("a", STORY), line("a", STORY)), "duplicate_custom_id", "'a'"),
        ((line("a", STORY, url="/v1/embeddings"),), "invalid_line", "/v1/embeddings"),
        ((line("a", STORY, method="GET"),), "invalid_line", "POST"),
        ((line("a", {**STORY, "stream": True}),), "invalid_line", "streamed"),
    ],
)
def test_a_file_that_is_no_batch_is_named(client: openai.OpenAI, lines: tuple[str, ...], code: str, named: str) -> None:
    batch = client.batches.create(
        input_file_id=upload(client, *lines), endpoint="/v1/completions", completion_window="24h"
    )
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data
    error = batch.errors.data[-1]
    assert error.code == code and named in (error.message or "") and error.line == max(1, len(lines))


def test_what_cannot_be_used_is_refused(client: openai.OpenAI, server: Server) -> None:
    file = upload(client, line("a", STORY))
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        client.batches.create(input_file_id=file, endpoint="/v1/embeddings", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="input_file_id|no file"):
        client.batches.create(input_file_id="file-none", endpoint="/v1/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", b"x"), purpose="vision")
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    assert server.post("/v1/files", b"{}", {"Content-Type": "application/json"}).status == 400


def test_a_batch_can_be_cancelled_and_keeps_what_it_has(client: openai.OpenAI, server: Server) -> None:
    slow = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "temperature": 1}
    file = upload(client, line("quick", STORY), *(line(f"s{i}", slow) for i in range(60)))
    batch = client.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h")
    while client.batches.retrieve(batch.id).request_counts.completed == 0:  # type: ignore[union-attr]
        time.sleep(0.02)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = finish(client, batch.id)
    assert done.status == "cancelled" and done.request_counts is not None
    assert done.request_counts.completed + done.request_counts.failed == 61
    assert "quick" in lines_of(client, done.output_file_id)
    assert lines_of(client, done.error_file_id)["s59"]["error"]["code"] == "batch_cancelling"
    assert server.metric("deepinfer_requests_admitted") == 0


def test_batches_belong_to_their_key_and_wait_for_its_rate(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna key-of-anna rpm=60\nben key-of-ben\n")
    with Server("--access-log", "off", "--keys", keys) as server:
        anna, ben = (openai.OpenAI(base_url=server.url + "/v1", api_key=f"key-of-{n}") for n in ("anna", "ben"))
        file = upload(anna, *(line(f"r{i}", {**STORY, "max_tokens": 1}) for i in range(62)))
        with pytest.raises(openai.NotFoundError):
            ben.files.retrieve(file)
        batch = anna.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h")
        with pytest.raises(openai.NotFoundError):
            ben.batches.retrieve(batch.id)
        done = finish(anna, batch.id)
        assert done.request_counts is not None and done.request_counts.completed == 62
        assert server.metric("deepinfer_requests_rejected_total") > 0


def test_lists_come_in_pages(client: openai.OpenAI, server: Server) -> None:
    before = [f.id for f in client.files.list()]
    new = [upload(client, line(f"r{i}", STORY)) for i in range(5)]
    assert [f.id for f in client.files.list(limit=2)] == [*reversed(new), *before]  # the client asks for every page
    first = client.files.list(limit=2)
    assert [f.id for f in first.data] == [new[4], new[3]] and first.has_more
    assert [f.id for f in client.files.list(limit=2, after=new[1]).data] == [new[0], *before[:1]]
    assert [f.id for f in client.files.list(order="asc").data][-1] == new[4]
    assert client.files.list(purpose="batch_output", limit=1).data != client.files.list(limit=1).data
    batches = [
        client.batches.create(input_file_id=f, endpoint="/v1/completions", completion_window="24h").id for f in new
    ]
    assert [b.id for b in client.batches.list(limit=3)][:5] == batches[::-1]
    page = client.batches.list(limit=2, after=batches[3])
    assert [b.id for b in page.data] == [batches[2], batches[1]] and page.has_more
    for path, named in (("files?limit=0", "limit"), ("batches?limit=101", "limit"), ("files?after=x", "after")):
        reply = server.get(f"/v1/{path}")
        assert reply.status == 400 and reply.json["error"]["param"] == named
    for batch in batches:
        finish(client, batch)


def test_files_and_batches_outlive_the_process(tmp_path: Path) -> None:
    """Killed in the middle of a batch and started anew: every line is answered once, by whichever process."""
    folder = tmp_path / "data"
    args = ("--access-log", "off", "--data-dir", folder)
    bodies = {f"r{i}": {**STORY, "max_tokens": 20 + i % 7} for i in range(60)}
    with Server(*args) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        file = upload(client, *(line(name, body) for name, body in bodies.items()), line("bad", {}))
        batch = client.batches.create(
            input_file_id=file, endpoint="/v1/completions", completion_window="24h", metadata={"who": "me"}
        )
        refused("serve", "--port", 0, "--data-dir", folder, names=(str(folder), "another process"))
        while client.batches.retrieve(batch.id).request_counts.completed < 5:  # type: ignore[union-attr]
            time.sleep(0.01)
        server.process.kill()
        server.expects_exit = -signal.SIGKILL
    for journal in (folder / "batches").glob("*.output"):
        with journal.open("ab") as f:
            f.write(b'{"id": "cut by the ki')
    with Server(*args) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        done = finish(client, batch.id)
        assert done.status == "completed" and done.metadata == {"who": "me"} and done.created_at == batch.created_at
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (61, 60, 1)
        output = client.files.content(done.output_file_id or "").text
        rows = lines_of(client, done.output_file_id)
        assert len(output.splitlines()) == 60 and set(rows) == set(bodies)
        expected = {n: server.ok("/v1/completions", {**STORY, "max_tokens": n}) for n in range(20, 27)}
        for name, body in bodies.items():
            text = rows[name]["response"]["body"]["choices"][0]["text"]
            assert text == expected[body["max_tokens"]]["choices"][0]["text"]
        kept = [f.id for f in client.files.list()]
        newer = [
            client.batches.create(input_file_id=file, endpoint="/v1/responses", completion_window="24h").id
            for _ in range(4)
        ]
    with Server(*args) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        assert client.batches.retrieve(batch.id) == done
        assert [b.id for b in client.batches.list()] == [*newer[::-1], batch.id]
        assert [f.id for f in client.files.list()] == kept and file in kept
        assert client.files.content(done.output_file_id or "").text == output


def test_a_batch_without_its_input_or_its_key_says_so(tmp_path: Path) -> None:
    keys, args = tmp_path / "keys", ("--access-log", "off", "--data-dir", tmp_path / "data")
    keys.write_text("anna key-of-anna\nben key-of-ben\n")
    slow = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True}
    with Server(*args, "--keys", keys) as server:
        batches = {}
        for name in ("anna", "ben"):
            client = openai.OpenAI(base_url=server.url + "/v1", api_key=f"key-of-{name}")
            file = upload(client, *(line(f"r{i}", slow) for i in range(60)))
            batch = client.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h")
            batches[name] = batch.id
            if name == "anna":
                client.files.delete(file)  # the batch that runs holds it
        server.process.kill()
        server.expects_exit = -signal.SIGKILL
    keys.write_text("anna key-of-anna\n")
    with Server(*args, "--keys", keys) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="key-of-anna")
        done = finish(client, batches["anna"])
        assert done.status == "failed" and done.errors is not None and done.errors.data
        assert done.errors.data[0].code == "no_input_file"
        assert [b.id for b in client.batches.list()] == [done.id]
    keys.write_text("anna key-of-anna\nben key-of-ben\n")
    with Server(*args, "--keys", keys) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="key-of-ben")
        done = client.batches.retrieve(batches["ben"])
        assert done.status == "failed" and done.errors is not None and done.errors.data
        assert done.errors.data[0].code == "no_key"


def test_files_have_a_limit_and_what_is_lost_is_said() -> None:
    with Server("--access-log", "off", "--files-mb", 1) as server:
        assert any("lost when the process ends" in row for row in server.log)
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        first = client.files.create(file=("a", b"x" * 700_000), purpose="batch")
        with pytest.raises(openai.APIStatusError) as refusal:
            client.files.create(file=("b", b"x" * 700_000), purpose="batch")
        assert refusal.value.status_code == 413 and "1048576" in refusal.value.message
        client.files.delete(first.id)
        client.files.create(file=("b", b"x" * 700_000), purpose="batch")
