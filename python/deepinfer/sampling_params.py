"""What a request may ask of the sampler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepinfer import _core


@dataclass
class SamplingParams:
    """Parameters of one request. Values are checked when the request is submitted; an error names field and limit.

    temperature: 0 means the likeliest token, exactly. top_p in (0, 1], top_k -1 (off) or >= 1, min_p in [0, 1]: all
    measured on the same softmax, the strictest wins. seq_seed (or seed) makes a request repeatable: the same tokens on
    every run, whatever else the engine does. golden_token_ids forces the output, -1 leaves a position free. so_args
    constrains it: {"schema_type": "json" | "json_object" | "regex" | "ebnf" | "choice" | "structural_tag", "schema":
    text (or, where it is JSON, the value), "trigger_token_ids": [...], "bound_token_id": id, "prefix": text}.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    max_tokens: int = 16
    stop: Sequence[str] | str = ()
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[Sequence[int]] = ()
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    processed_logprobs: bool = False
    first_n_token_no_eos: int = 0
    eos_id: int = 0  # accepted for compatibility; the tokenizer's id is used
    so_args: Mapping[str, Any] | None = None
    golden_token_ids: Sequence[int] | None = None
    seq_seed: int | None = None
    seed: int | None = None
    priority: int = 0
    deadline_ms: int | None = None
    cache_mode: str | None = None  # "bounded", "exact" or "off"
    cache_salt: str = ""

    def to_core(self) -> _core.SamplingParams:
        """The engine's form of these parameters."""
        core = _core.SamplingParams()
        same = (
            "temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty ignore_eos max_tokens "
            "n logprobs top_logprobs prompt_logprobs first_n_token_no_eos priority deadline_ms cache_salt"
        )
        for name in same.split():
            _assign(core, name, getattr(self, name))
        _assign(core, "logit_bias", _listed("logit_bias", getattr(self.logit_bias, "items", lambda: self.logit_bias)()))
        _assign(core, "stop", [self.stop] if isinstance(self.stop, str) else _listed("stop", self.stop))
        _assign(core, "stop_token_ids", _listed("stop_token_ids", self.stop_token_ids))
        _assign(core, "bad_words", [_listed("bad_words", word) for word in _listed("bad_words", self.bad_words)])
        _assign(core, "golden_token_ids", _listed("golden_token_ids", self.golden_token_ids or ()))
        _assign(core, "seed", self.seed if self.seq_seed is None else self.seq_seed)
        if self.processed_logprobs:
            core.logprob_kind = _core.LogprobKind.processed
        if self.cache_mode is not None:
            if self.cache_mode not in ("bounded", "exact", "off"):
                raise ValueError(f"cache_mode is {self.cache_mode!r}; allowed: 'bounded', 'exact', 'off'")
            core.cache_mode = getattr(_core.CacheMode, self.cache_mode)
        if self.so_args is not None:
            core.so_args = _structured_output(self.so_args)
        return core


_KINDS = {
    "ignore_eos": "True or False",
    "logprobs": "True or False",
    "prompt_logprobs": "True or False",
    "seed": "an integer from 0 to 2**64 - 1",
    "logit_bias": "a mapping from token ids to numbers",
    "stop": "a string or a list of strings",
    "stop_token_ids": "a list of token ids",
    "bad_words": "a list of lists of token ids",
    "golden_token_ids": "a list of token ids, -1 for a free position",
    "cache_salt": "a string",
} | dict.fromkeys(
    "temperature top_p min_p repetition_penalty presence_penalty frequency_penalty".split(),
    "a number",
)


def _listed(name: str, value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError as error:
        raise ValueError(f"{name} is {value!r}; allowed: {_KINDS.get(name, 'a list')}") from error


def _assign(core: _core.SamplingParams, name: str, value: object) -> None:
    """Sets a field whose range the engine checks; a value that the field cannot hold is refused here."""
    try:
        setattr(core, name, value)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{name} is {value!r}; allowed: {_KINDS.get(name, 'an integer')}") from error


def _structured_output(args: Mapping[str, Any]) -> _core.StructuredOutput:
    known = ("schema_type", "schema", "trigger_token_ids", "bound_token_id", "prefix")
    if not isinstance(args, Mapping):
        raise ValueError(f"so_args is {args!r}; allowed: a mapping with the keys {', '.join(known)}")
    for key in args:
        if key not in known:
            raise ValueError(f"so_args has the key {key!r}; allowed: {', '.join(known)}")
    kind = args.get("schema_type")
    for key in ("schema_type", "schema"):
        if key not in args and not (key == "schema" and kind == "json_object"):
            raise ValueError(f"so_args needs the key {key!r}")
    schema = args.get("schema", "")
    if not isinstance(schema, str) and kind in ("json", "choice", "structural_tag"):
        schema = json.dumps(schema, ensure_ascii=False)
    out = _core.StructuredOutput()
    values = {
        "schema_type": kind,
        "schema": schema,
        "trigger_token_ids": args.get("trigger_token_ids") or (),
        "bound_token_id": args.get("bound_token_id"),
        "prefix": args.get("prefix", ""),
    }
    kinds = {"trigger_token_ids": "a list of token ids", "bound_token_id": "a token id"}
    for key, value in values.items():
        try:
            setattr(out, key, list(value) if key == "trigger_token_ids" else value)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"so_args[{key!r}] is {value!r}; allowed: {kinds.get(key, 'a string')}") from error
    return out
