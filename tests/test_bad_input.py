"""Whatever is wrong with the input: exit code 2, one sentence that names the thing, nothing on standard output."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import FIXTURE, TINY, refused, run, sentence

# Root reads everything; without these two capabilities it is a user like any other.
RIGHTS = "-dac_override,-dac_read_search"
AS_ANYBODY = ("setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}") if os.geteuid() == 0 else ()
FIRST = "model-00001-of-00003.safetensors"
Header = dict[str, Any]


def generate_is_refused(model: Path, names: tuple[str, ...] | str) -> None:
    refused("generate", "--model", model, "--prompt", "a", "--max-tokens", 1, names=names)


def read_shard(path: Path) -> tuple[Header, bytes]:
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_shard(path: Path, header: Header | bytes, body: bytes, size: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + body)


def some_tensor(header: Header, suffix: str) -> str:
    return next(name for name in header if name.endswith(suffix))


# ---- shards ---------------------------------------------------------------------------------------------------------


def test_missing_shard(checkpoint: Path) -> None:
    (checkpoint / "model-00002-of-00003.safetensors").unlink()
    generate_is_refused(checkpoint, "model-00002-of-00003.safetensors")


@pytest.mark.parametrize("size", [0, 5, 8, 1000, 1_000_000])
def test_truncated_shard(checkpoint: Path, size: int) -> None:
    os.truncate(checkpoint / FIRST, size)
    generate_is_refused(checkpoint, FIRST)


def test_index_that_names_an_absent_tensor(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["layers.0.no_such_thing"] = FIRST
    path.write_text(json.dumps(index))
    generate_is_refused(checkpoint, "layers.0.no_such_thing")


def test_index_that_names_an_absent_file(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = next(iter(index["weight_map"]))
    index["weight_map"][name] = "elsewhere.safetensors"
    path.write_text(json.dumps(index))
    generate_is_refused(checkpoint, "elsewhere.safetensors")


def test_index_that_is_not_json(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").write_text("{")
    generate_is_refused(checkpoint, "model.safetensors.index.json")


def test_tensor_that_is_missing(checkpoint: Path) -> None:
    header, body = read_shard(checkpoint / FIRST)
    del header[some_tensor(header, "weight")]
    write_shard(checkpoint / FIRST, header, body)
    generate_is_refused(checkpoint, "belong to nothing")  # its bytes are still there


def change_dtype(header: Header) -> str:
    name = some_tensor(header, "norm.weight")
    header[name]["dtype"] = "F16"
    return name


def change_shape(header: Header) -> str:
    name = some_tensor(header, "norm.weight")
    header[name]["shape"] = [1, *header[name]["shape"]]
    return name


def overlap(header: Header) -> str:
    names = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"][0])
    begin, end = header[names[1]]["data_offsets"]
    header[names[1]]["data_offsets"] = [begin - 2, end - 2]
    return names[1]


def negative(header: Header) -> str:
    name = some_tensor(header, "weight")
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = [begin - end - 4, -4]
    return name


def beyond(header: Header) -> str:
    name = some_tensor(header, "weight")
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = [begin + (1 << 40), end + (1 << 40)]
    return "belong to nothing"  # the bytes that it left


def reversed_offsets(header: Header) -> str:
    name = some_tensor(header, "weight")
    header[name]["data_offsets"] = header[name]["data_offsets"][::-1]
    return name


def huge_shape(header: Header) -> str:
    name = some_tensor(header, "weight")
    header[name]["shape"] = [1 << 62, 1 << 62]
    return name


@pytest.mark.parametrize(
    "damage", [change_dtype, change_shape, overlap, negative, beyond, reversed_offsets, huge_shape]
)
def test_header_entry(checkpoint: Path, damage: Callable[[Header], str]) -> None:
    header, body = read_shard(checkpoint / FIRST)
    name = damage(header)
    write_shard(checkpoint / FIRST, header, body)
    if damage is overlap:  # either of the two may be named
        generate_is_refused(checkpoint, FIRST)
    else:
        generate_is_refused(checkpoint, name)


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[]", b"nonsense", b'{"a": 1}', b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe{}"],
    ids=["empty", "open", "list", "words", "number", "deep-lists", "deep-objects", "not-utf8"],
)
def test_header_that_is_no_header(checkpoint: Path, header: bytes) -> None:
    write_shard(checkpoint / FIRST, header, b"\0" * 64)
    generate_is_refused(checkpoint, FIRST)


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, (1 << 63) + 5, (1 << 64) - 1])
def test_header_larger_than_the_file(checkpoint: Path, size: int) -> None:
    write_shard(checkpoint / FIRST, b"{}", b"", size)
    generate_is_refused(checkpoint, FIRST)


def test_scale_out_of_range(checkpoint: Path) -> None:
    path = checkpoint / FIRST
    header, body = read_shard(path)
    name = next(n for n, e in header.items() if n != "__metadata__" and e["dtype"] in ("F8_E8M0", "U8"))
    at = header[name]["data_offsets"][0]
    write_shard(path, header, body[:at] + b"\xff" + body[at + 1 :])
    # What inspect knows without reading scales is printed before.
    sentence(run("inspect", "--model", checkpoint, "--verify"), (name, "255"))


# ---- config.json ----------------------------------------------------------------------------------------------------


def edit_config(checkpoint: Path, edit: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    edit(config, config["text_config"])
    path.write_text(json.dumps(config))


CONFIG_EDITS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = {
    "architecture": (lambda c, t: c.update(architectures=["LlamaForCausalLM"]), "LlamaForCausalLM"),
    "missing key": (lambda c, t: t.pop("head_dim"), "head_dim"),
    "text for a number": (lambda c, t: t.update(hidden_size="128"), "hidden_size"),
    "fraction for a count": (lambda c, t: t.update(num_hidden_layers=2.5), "num_hidden_layers"),
    "negative": (lambda c, t: t.update(vocab_size=-1), "vocab_size"),
    "too few ratios": (lambda c, t: t.update(compress_ratios=t["compress_ratios"][:3]), "compress_ratios"),
    "illegal ratio": (lambda c, t: t.update(compress_ratios=[3, *t["compress_ratios"][1:]]), "compress_ratios"),
    "unknown KV source": (lambda c, t: t.update(kv_source_layer_ids=[0]), "KV source 0"),
    "target beyond the layers": (lambda c, t: t.update(dspark_target_layer_ids=[7, 8, 99]), "dspark_target_layer_ids"),
    "window": (lambda c, t: t.update(sliding_window=0), "sliding_window"),
    "activation of another model": (lambda c, t: t.update(scoring_func="softmax"), "scoring_func"),
    "huge": (lambda c, t: t.update(hidden_size=1 << 62), "hidden_size"),
}


@pytest.mark.parametrize("case", CONFIG_EDITS)
def test_config_is_refused(checkpoint: Path, case: str) -> None:
    edit, name = CONFIG_EDITS[case]
    edit_config(checkpoint, edit)
    generate_is_refused(checkpoint, name)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"a":' * 100_000], ids=range(6))
def test_config_that_is_no_configuration(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.json").write_text(text)
    generate_is_refused(checkpoint, "config.json")


def test_missing_config(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    generate_is_refused(checkpoint, "config.json")


# ---- tokenizer.json -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "merges",
    [["nospace"], ["zzzz qqqq"], [["a"]], [5], "text", [["a", "b", "c"]]],
    ids=["one-word", "unknown", "one-part", "number", "text", "three-parts"],
)
def test_broken_merges(checkpoint: Path, merges: object) -> None:
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["merges"] = merges
    path.write_text(json.dumps(tokenizer))
    generate_is_refused(checkpoint, ("tokenizer.json", "merge"))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000], ids=range(5))
def test_tokenizer_that_is_none(checkpoint: Path, text: str) -> None:
    (checkpoint / "tokenizer.json").write_text(text)
    generate_is_refused(checkpoint, "tokenizer.json")


# ---- directories ----------------------------------------------------------------------------------------------------


def test_absent_directory() -> None:
    generate_is_refused(Path("/no/such/place"), "/no/such/place")


def test_hub_name_that_is_not_in_the_cache(tmp_path: Path) -> None:
    message = refused(
        "generate", "--model", "owner/name", "--prompt", "a", names="owner/name", env={"HF_HUB_CACHE": str(tmp_path)}
    )
    assert "hf download owner/name" in message


def test_file_in_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    generate_is_refused(tmp_path / "file", "file")


def test_unreadable_directory(checkpoint: Path) -> None:
    checkpoint.chmod(0)
    try:
        done = run("generate", "--model", checkpoint, "--prompt", "a", launcher=AS_ANYBODY)
        sentence(done, ("checkpoint", "Permission denied"))
    finally:
        checkpoint.chmod(0o755)


def test_unreadable_entry(checkpoint: Path) -> None:
    # A directory where a file is expected cannot be read by anybody, root included.
    (checkpoint / FIRST).unlink()
    (checkpoint / FIRST).mkdir()
    generate_is_refused(checkpoint, FIRST)


# ---- prompts and parameters -----------------------------------------------------------------------------------------


def generate(*args: object, names: tuple[str, ...] | str) -> None:
    refused("generate", "--model", FIXTURE, *args, names=names)


def test_empty_prompt(tmp_path: Path) -> None:
    generate("--prompt", "", names="prompt is empty")
    (tmp_path / "ids.json").write_text("[]")
    generate("--ids", tmp_path / "ids.json", names="prompt is empty")


def test_prompt_longer_than_the_context_names_both_numbers(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps([7] * 5000))
    generate("--ids", tmp_path / "ids.json", names=("5000", "4096"))


@pytest.mark.parametrize("bad", [-1, 512, 1 << 31, 1 << 62])
def test_id_out_of_range(tmp_path: Path, bad: int) -> None:
    (tmp_path / "ids.json").write_text(json.dumps([5, bad]))
    generate("--ids", tmp_path / "ids.json", names=str(bad))


@pytest.mark.parametrize("text", ["[5, 1.5]", '["a"]', '{"x": 1}', "5", "[", "[[]]", "[[5], [6]", '[{"ids": 3}]'])
def test_ids_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ids.json").write_text(text)
    generate("--ids", tmp_path / "ids.json", names="")


@pytest.mark.parametrize("prompt", [b"a\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"caf\xc3"])
def test_prompt_that_is_not_utf8(prompt: bytes) -> None:
    refused("generate", "--model", FIXTURE, "--prompt", prompt, names="UTF-8")


@pytest.mark.parametrize(
    ("option", "value", "names"),
    [
        ("--temperature", "-0.5", ("temperature", "-0.5")),
        ("--temperature", "nan", ("temperature", "nan")),
        ("--temperature", "inf", ("temperature", "inf")),
        ("--top-p", "0", ("top_p", "0")),
        ("--top-p", "1.5", ("top_p", "1.5")),
        ("--top-k", "0", ("top_k", "0")),
        ("--min-p", "-1", ("min_p", "-1")),
        ("--max-tokens", "-1", ("max_tokens", "-1")),
        ("--max-tokens", "9000", ("max_tokens", "9000", "4096")),
        ("--repetition-penalty", "0", ("repetition_penalty", "0")),
        ("--presence-penalty", "3", ("presence_penalty", "3")),
        ("--top-logprobs", "1001", ("top_logprobs", "1001", "1000")),
        ("-n", "0", ("n 0",)),
        ("-n", "-5", ("n -5",)),
        ("-n", "2000000000", ("n 2000000000", "128")),
        ("--stop", "", ("stop",)),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_parameter(option: str, value: str, names: tuple[str, ...], form: tuple[str, ...]) -> None:
    # A value that begins with a minus must be joined to its option; an empty one must not.
    joint = "=" if option.startswith("--") else ""
    given = (f"{option}{joint}{value}",) if value else (option, value)
    generate("--prompt", "a", *given, *form, names=names)


def test_two_prompts(tmp_path: Path) -> None:
    generate("--prompt", "a", "--chat", tmp_path / "x.json", names="only one")


def test_chat_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    generate("--chat", path, names="chat.json")
    for text in ("", "{", "[]", "{}", '{"messages": 3}', '{"messages": [{"role": "nobody", "content": "x"}]}'):
        path.write_text(text)
        generate("--chat", path, names="")


def test_image_before_vision_exists(tmp_path: Path) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "What?"},
    ]
    (tmp_path / "chat.json").write_text(json.dumps({"messages": [{"role": "user", "content": parts}]}))
    generate("--chat", tmp_path / "chat.json", names="image")


@pytest.mark.parametrize("options", [("--max-num-seqs", 4096, "--max-num-batched-tokens", 1 << 20)])
def test_plan_that_does_not_fit_is_refused_before_allocation(options: tuple[object, ...]) -> None:
    refused("generate", "--model", TINY, "--prompt", "a", *options, names=("not enough memory", "max_num_seqs"))


def test_engine_options() -> None:
    generate("--prompt", "a", "--max-model-len", 1 << 30, names=("max_model_len", "4096"))
    generate("--prompt", "a", "--max-num-batched-tokens", 3, names=("max_num_batched_tokens 3",))
    generate("--prompt", "a", "--drafts", 9, names=("9 drafts", "5"))
    generate("--prompt", "a", "--numerics", "exact", names=("exact", "vendor"))
    generate("--prompt", "a", "--backend", "tpu", names=("tpu", "cpu"))
    generate("--prompt", "a", "--numerics", "fp32", "--backend", "cpu", names="fp32")


# ---- variables ------------------------------------------------------------------------------------------------------


def test_unknown_variable_names_the_nearest() -> None:
    for command in (("settings",), ("generate", "--prompt", "a")):
        refused(
            *command,
            env={"DEEPINFER_USE_NEXTN_DECODES": "3"},
            names=("DEEPINFER_USE_NEXTN_DECODES", "DEEPINFER_USE_NEXTN_DECODE?"),
        )


def test_malformed_variable() -> None:
    refused("settings", env={"DEEPINFER_USE_NEXTN_DECODE": "many"}, names=("DEEPINFER_USE_NEXTN_DECODE", "many"))
    refused(
        "settings", env={"DEEPINFER_DECODE_TOKEN_BLACKLIST": "5,3"}, names=("DEEPINFER_DECODE_TOKEN_BLACKLIST", "5,3")
    )
    refused("settings", env={"DEEPINFER_FORCE_LOAD_BALANCE": "1"}, names="DEEPINFER_FORCE_LOAD_BALANCE")


# ---- other commands -------------------------------------------------------------------------------------------------


def test_tokenize_names_the_line() -> None:
    for line in ("5", "{", "", '"a', '["a"]'):
        done = run("tokenize", "--model", FIXTURE, stdin=f'"fine"\n{line}\n')
        assert len(done.stdout.splitlines()) == 1  # the lines before are answered
        sentence(done, "line 2")
    for line in ("[512]", "[-1]", "[1.5]", '"a"', "[99999999999999999999]"):
        done = run("tokenize", "--model", FIXTURE, "--decode", stdin=f"[5]\n{line}\n")
        assert len(done.stdout.splitlines()) == 1  # the lines before are answered
        sentence(done, "line 2")


def test_render() -> None:
    for text in ("", "{", "[]", "{}", '{"messages": 5}', "[" * 100_000):
        refused("render", "--model", FIXTURE, stdin=text, names="")


def test_logits(tmp_path: Path) -> None:
    ids, out = tmp_path / "ids.json", tmp_path / "out.safetensors"
    for text, name in (
        ("[[5, 600]]", "600"),
        ("[[]]", "empty"),
        ("[]", "ids.json"),
        ('[{"image": []}]', "ids"),
        ("[[1.5]]", "integer"),
    ):
        ids.write_text(text)
        refused("logits", "--model", FIXTURE, "--ids", ids, "--out", out, names=name)
        assert not out.exists()
    ids.write_text("[[5, 6]]")
    refused("logits", "--model", FIXTURE, "--ids", ids, "--out", tmp_path / "none" / "out", names="none")


def test_eval(tmp_path: Path) -> None:
    refused("eval", "--tasks", "huge", names=("huge", "tiny"))
    refused("eval", "--data", tmp_path, names="items.jsonl")
    for text in ("{", "5\n", '{"task": "x"}\n', '{"task": 3, "prompt_ids": [5], "answer_ids": [6]}\n'):
        (tmp_path / "items.jsonl").write_text(text)
        refused("eval", "--data", tmp_path, names="items.jsonl")


@pytest.mark.parametrize(
    "args", [(), ("nothing",), ("generate", "--no-such-option"), ("generate", "--threads", "0"), ("logits",)]
)
def test_usage(args: tuple[str, ...]) -> None:
    done = run(*args)
    assert done.returncode == 2 and done.stdout == b"" and done.stderr
