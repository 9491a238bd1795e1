"""The commands end to end, on the built-in model and on the random fixture."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
from command import BINARY, FIXTURE, ROOT, TINY, ok, refused, run
from safetensors.numpy import load_file

STORY = "Once upon a time"


def test_generate_prints_the_text_alone() -> None:
    done = run("generate", "--prompt", STORY, "--max-tokens", 20)
    assert done.returncode == 0 and done.stderr == b""
    assert len(done.stdout.decode().split()) > 10


def test_generate_json() -> None:
    answer = json.loads(ok("generate", "--prompt", STORY, "--max-tokens", 12, "--json", "--logprobs"))
    assert set(answer) == {"prompt_ids", "ids", "text", "reasoning", "tool_calls", "finish_reason", "logprobs", "stats"}
    assert len(answer["ids"]) == len(answer["logprobs"]) == answer["stats"]["completion_tokens"] == 12
    assert len(answer["prompt_ids"]) == answer["stats"]["prompt_tokens"]
    assert answer["finish_reason"] == "length" and answer["tool_calls"] == [] and answer["reasoning"] is None
    assert all(value <= 0 for value in answer["logprobs"])
    assert answer["text"] == ok("generate", "--prompt", STORY, "--max-tokens", 12).rstrip("\n")


def test_generate_from_ids_and_chat(tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(json.loads(ok("generate", "--prompt", STORY, "--max-tokens", 1, "--json"))["prompt_ids"]))
    words = ("--max-tokens", 12)
    assert ok("generate", "--ids", ids, *words) == ok("generate", "--prompt", STORY, *words)
    chat = tmp_path / "chat.json"
    body = {"messages": [{"role": "user", "content": "What is 27 + 15?"}], "thinking": {"type": "disabled"}}
    chat.write_text(json.dumps(body))
    answer = json.loads(ok("generate", "--chat", chat, "--json", "--max-tokens", 30))
    assert "42" in answer["text"] and answer["finish_reason"] == "stop"


def test_generate_follows_a_grammar(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}')
    story = ("generate", "--prompt", STORY)
    assert json.loads(ok(*story, "--json-schema", schema))["n"] <= 9
    assert ok(*story, "--regex", "[ab]{3}!").strip() in {a + b + c + "!" for a in "ab" for b in "ab" for c in "ab"}
    assert ok(*story, "--choice", "one", "--choice", "two").strip() in ("one", "two")
    grammar = tmp_path / "grammar.txt"
    grammar.write_text('root ::= "x" "y"{2}')
    assert ok(*story, "--grammar", grammar).strip() == "xyy"
    chat = tmp_path / "chat.json"
    chat.write_text(
        '{"messages": [{"role": "user", "content": "Give JSON"}], "thinking": {"type": "disabled"},'
        ' "response_format": {"type": "json_object"}, "max_tokens": 300}'
    )
    assert isinstance(json.loads(ok("generate", "--chat", chat, "--max-tokens", 300)), dict)
    assert json.loads(ok(*story, "--json-schema", schema, "--temperature", 1, "--seed", 1))["n"] <= 9
    refused(*story, "--regex", "(a", names="so_args.schema")
    refused(*story, "--regex", "a", "--choice", "b", names="only one of --json-schema")
    schema.write_text('{"not": {}}')
    refused(*story, "--json-schema", schema, names="'not' is not supported")
    refused(*story, "--json-schema", tmp_path / "none.json", names="none.json")


def test_generate_repeats_with_a_seed_and_not_without() -> None:
    words = ("generate", "--prompt", STORY, "--temperature", 1, "--max-tokens", 30)
    assert ok(*words, "--seed", 5) == ok(*words, "--seed", 5)
    assert ok(*words, "--seed", 5) != ok(*words, "--seed", 6)


def test_generate_does_not_depend_on_threads_drafts_or_chunks() -> None:
    words = ("generate", "--model", FIXTURE, "--prompt", "abc def ghi jkl mno", "--max-tokens", 20, "--json")
    expected = json.loads(ok(*words))["ids"]
    for options in (("--threads", 1), ("--drafts", 0), ("--max-num-seqs", 1, "--max-num-batched-tokens", 6)):
        assert json.loads(ok(*words, *options))["ids"] == expected, options


def test_ctrl_c_ends_generate() -> None:
    words = [str(BINARY), "generate", "--prompt", STORY, "--max-tokens", "4000", "--ignore-eos"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(20)
        child.send_signal(signal.SIGINT)
        begin = time.monotonic()
        child.communicate(timeout=20)
        assert time.monotonic() - begin < 10
        assert child.returncode in (0, 130)


def test_chat_over_a_pipe() -> None:
    script = "What is 27 + 15?\n/new\n/system You are brief.\nWhat is 3 + 4?\n/quit\n"
    done = run("chat", "--max-tokens", 30, stdin=script)
    assert done.returncode == 0 and done.stderr == b""
    text = done.stdout.decode()
    assert "42" in text and "7" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), "no escape codes, no carriage returns"


def test_chat_survives_a_bad_line() -> None:
    done = run("chat", "--max-tokens", 20, stdin=b"caf\xc3\nWhat is 3 + 4?\n")
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1 and b"UTF-8" in done.stderr
    assert b"7" in done.stdout


def test_logits(tmp_path: Path) -> None:
    ids, out = tmp_path / "ids.json", tmp_path / "out.safetensors"
    ids.write_text(json.dumps([[0, 5, 9, 33, 70], {"ids": [0, 8, 8, 9, 12, 13], "image": [[2, 4]]}]))
    words = ("logits", "--model", FIXTURE, "--ids", ids, "--out", out, "--numerics", "vendor")
    ok(*words, "--hidden", "--trace")
    whole = load_file(out)
    assert whole["logits.0"].shape == (5, 512) and whole["logits.1"].shape == (6, 512)
    assert whole["draft.0"].shape == whole["confidence.0"].shape == (5,)
    assert {"hidden.0.0", "hidden.0.10", "engram.0"} <= set(whole) and any(n.startswith("chosen.0.") for n in whole)
    for options in (("--chunk", 2), ("--decode-from", 2), ("--ranks", 2), ("--threads", 1)):
        ok(*words, *options)
        other = load_file(out)
        for name in ("logits.0", "draft.0", "confidence.0", "logits.1"):
            assert np.array_equal(whole[name], other[name]), (options, name)
    for options in (("--last",), ("--last", "--chunk", 2), ("--last", "--ranks", 2)):
        ok(*words, *options)
        last = load_file(out)
        for name in ("logits.0", "logits.1"):
            assert np.array_equal(whole[name][-1:], last[name]), (options, name)
        assert np.array_equal(whole["confidence.0"], last["confidence.0"]), options
    refused(*words, "--last", "--trace", names="--last")


def test_tokenize_round_trip() -> None:
    texts = [STORY, "", "naïve — 日本語 😀", "<｜User｜>a", "tab\tnew\nline \x00 end", "a" * 1000]
    lines = "".join(json.dumps(t, ensure_ascii=i % 2 == 0) + "\n" for i, t in enumerate(texts))
    for model in (TINY, FIXTURE):
        ids = ok("tokenize", "--model", model, stdin=lines)
        assert [json.loads(t) for t in ok("tokenize", "--model", model, "--decode", stdin=ids).splitlines()] == texts
    added = json.loads(ok("tokenize", "--model", TINY, stdin='"<｜User｜>"'))
    plain = json.loads(ok("tokenize", "--model", TINY, "--plain", stdin='"<｜User｜>"'))
    assert len(added) == 1 and len(plain) > 1


def test_render_agrees_with_tokenize() -> None:
    body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
    rendered = json.loads(ok("render", "--model", TINY, stdin=json.dumps(body)))
    assert set(rendered) == {"prompt", "ids", "special"}
    assert json.loads(ok("tokenize", "--model", TINY, stdin=json.dumps(rendered["prompt"]))) == rendered["ids"]
    text = rendered["prompt"].encode()
    assert all(text[a:b].startswith(b"<") for a, b in rendered["special"])


def test_eval_json() -> None:
    scores = json.loads(ok("eval", "--per-task", 4, "--stories", 4, "--json"))
    generated, accepted = scores.pop("generated"), scores.pop("accepted_a_round")
    assert scores and set(scores) == set(generated)
    assert all(0 <= v <= 1 for v in [*scores.values(), *generated.values()])
    assert sum(scores.values()) / len(scores) > 0.5 and accepted > 1


def test_bench_json() -> None:
    words = ("--prompts", 2, "--prompt-tokens", 16, "--output-tokens", 8, "--repeats", 1, "--json")
    figures = json.loads(ok("bench", *words))
    assert figures["prefill_tokens_s"] > 0 and figures["decode_tokens_s"] > 0


def test_inspect_and_plan() -> None:
    text = ok("inspect", "--model", FIXTURE, "--verify")
    assert "10 layers" in text and "verified" in text
    config = ROOT / "tests" / "golden" / "released" / "config.json"
    assert "placement" in ok("plan", "--config", config, "--devices", "8xH200", "--ram", "1T")


def test_settings() -> None:
    assert ok("settings", "--markdown") == (ROOT / "docs" / "settings.md").read_text()
    assert "no effect" in ok("settings", env={"DEEPINFER_NCCL_NUM_SMS": "16"})


def test_make_random_gives_a_model_that_runs(tmp_path: Path) -> None:
    ok("make-random", "--shape", "tiny", "--seed", 3, "--out", tmp_path / "m")
    assert json.loads(ok("generate", "--model", tmp_path / "m", "--prompt", "a", "--max-tokens", 3, "--json"))["ids"]
    ok("inspect", "--model", tmp_path / "m", "--verify")


def test_hub_name_in_the_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(TINY)
    words = ("generate", "--prompt", STORY, "--max-tokens", 3)
    assert ok(*words, "--model", "owner/name", env={"HF_HUB_CACHE": str(tmp_path)}) == ok(*words)
