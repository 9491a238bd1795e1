"""The offline engine: `LLM(model).generate(prompts)`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepinfer import _core
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams

# Arguments of DeepInfer's LLM that are accepted and do nothing here, with the reason (see docs/settings.md).
_WITHOUT_EFFECT = {
    "trust_remote_code": "no remote code is ever run",
    "revision": "the newest snapshot in the cache is used",
    "tokenizer_revision": "the newest snapshot in the cache is used",
    "served_model_name": "a label",
    "engine_rank": "ranks are in-process",
    "engine_group_rank": "ranks are in-process",
    "engram_parallel_size": "Engram rows are shared by the ranks of a host",
    "chunked_prefill": "prompts are always cut into chunks",
    "ignore_len": "unused",
    "lookahead_tokens": "chunks have no minimum length",
}
# Arguments that would change what runs and are not built: name -> (values that are fine, reason).
_REFUSED = {
    "data_parallel_size": ((0, 1), "replicas are separate processes"),
    "context_parallel_size": ((1,), "not built"),
    "expert_parallel_size": ((1,), "the offline engine runs one rank; `deepinfer logits --ranks` runs several"),
    "engine_type": (("NORMAL",), "prefill-only and decode-only roles are not built"),
    "stop_preempted_request": ((False,), "preempted requests always resume"),
    "tokens_per_block": ((-1, 128), "blocks hold 128 tokens"),
    "load_format": (("auto",), "make generated weights with `deepinfer make-random`"),
}


def embedded_model() -> str:
    """Directory of the built-in tiny model: beside the package in a source tree or an installation."""
    for parent in Path(__file__).resolve().parents:
        for candidate in (parent / "models" / "tiny", parent / "share" / "deepinfer" / "models" / "tiny"):
            if (candidate / "config.json").exists():
                return str(candidate)
    raise FileNotFoundError("models/tiny was not found beside the package; give LLM(model=DIRECTORY)")


def _limit(options: _core.EngineOptions, name: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; allowed: {low} to {high}")
    setattr(options, name, value)


class Tokenizer:
    """Text to token ids and back, as the engine does it."""

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; control tokens in it are matched, nothing is added."""
        return self._engine.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, control tokens kept; ids that are no token give nothing."""
        return self._engine.decode(list(ids))

    @property
    def eos_token_id(self) -> int:
        """Id of the end-of-text token."""
        return self._engine.eos_token_id


class LLM:
    """A model ready to generate. Arguments have DeepInfer's names; a value that is wrong raises ValueError.

    model: directory or hub name (default: the built-in tiny model). max_model_len: prompt and output tokens (default:
    what memory allows). gpu_memory_utilization: share of the free memory for caches. decode_sequence: True makes
    generate() return plain strings.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        tokenizer: str | Path | None = None,
        *,
        seed: int = 0,
        gpu_memory_utilization: float = 0.90,
        decode_sequence: bool = False,
        max_model_len: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        disable_log_stats: bool = True,
        numerics: str = "fast",
        backend: str = "",
        num_threads: int = 0,
        num_drafts: int | None = None,
        truncation: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name, value in kwargs.items():
            if name in _REFUSED:
                allowed, reason = _REFUSED[name]
                if value not in allowed:
                    raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))} ({reason})")
            elif name not in _WITHOUT_EFFECT:
                raise TypeError(f"LLM() got an unknown argument {name!r}")
        if not 0 < gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization is {gpu_memory_utilization!r}; allowed: above 0 up to 1")
        truncations = ("off", "mask", "compact")
        if truncation not in (None, *truncations):
            raise ValueError(f"truncation is {truncation!r}; allowed: 'off', 'mask', 'compact'")
        options = _core.EngineOptions()
        options.model = str(model) if model else embedded_model()
        options.tokenizer = str(tokenizer) if tokenizer else ""
        options.seed = seed
        options.memory_fraction = gpu_memory_utilization
        options.log_statistics = not disable_log_stats
        options.numerics, options.backend = numerics, backend
        _limit(options, "num_threads", num_threads, 0, 4096)
        _limit(options, "max_model_len", max_model_len, 1, 1 << 40)
        _limit(options, "max_num_batched_tokens", max_num_batched_tokens, 1, 1 << 20)
        _limit(options, "max_num_seqs", max_num_seqs, 1, 4096)
        _limit(options, "num_drafts", num_drafts, 0, 32)
        if truncation is not None:
            options.truncation = truncations.index(truncation)
        self._decode_sequence = decode_sequence
        self._engine: _core.Engine | None = _core.make_engine(options)

    @property
    def engine(self) -> _core.Engine:
        """The native engine."""
        if self._engine is None:
            raise RuntimeError("this LLM was closed")
        return self._engine

    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[Sequence[int]] | Sequence[int] | None = None,
        use_tqdm: bool = True,
        multi_modal_data: Any = None,
    ) -> list[RequestOutput] | list[str]:
        """Continues every prompt; one result a prompt, in order.

        A prompt that is wrong (empty, too long, an id outside the vocabulary) fails alone: its outputs have the
        finish_reason "error" and the reason in `error`. Wrong parameters raise ValueError before anything runs.

        prompts: text, or leave it out and give prompt_token_ids. sampling_params: one for all, or one a prompt.
        use_tqdm: a progress line on a terminal. Ctrl-C cancels what runs and raises KeyboardInterrupt.
        """
        if multi_modal_data is not None:
            raise ValueError("multi_modal_data: images are not supported yet")
        texts, ids = self._prompts(prompts, prompt_token_ids)
        params = sampling_params if sampling_params is not None else SamplingParams()
        per_prompt = [params] * len(ids) if isinstance(params, SamplingParams) else list(params)
        if len(per_prompt) != len(ids):
            raise ValueError(f"{len(per_prompt)} sampling_params for {len(ids)} prompts")
        requests = []
        for i, (prompt, p) in enumerate(zip(ids, per_prompt, strict=True)):
            request = _core.Request()
            request.sampling = p.to_core()
            self.engine.check(request.sampling)
            try:
                request.prompt = prompt
            except TypeError as error:
                raise ValueError(f"prompt {i} is not a list of token ids (32-bit integers)") from error
            requests.append(request)
        total = sum(p.n for p in per_prompt)
        progress = _Progress(total) if use_tqdm and sys.stderr.isatty() else None
        results = self.engine.generate(requests, progress)
        outputs = [RequestOutput.from_core(text, r) for text, r in zip(texts, results, strict=True)]
        if self._decode_sequence:
            return [o.outputs[0].text for o in outputs]
        return outputs

    def get_tokenizer(self) -> Tokenizer:
        """The engine's tokenizer."""
        return Tokenizer(self.engine)

    def close(self) -> None:
        """Ends what runs and gives the memory back."""
        self._engine = None

    def _prompts(
        self,
        prompts: str | Sequence[str] | None,
        prompt_token_ids: Sequence[Sequence[int]] | Sequence[int] | None,
    ) -> tuple[Sequence[str | None], list[list[int]]]:
        if prompt_token_ids is not None:
            if prompts is not None:
                raise ValueError("give prompts or prompt_token_ids, not both")
            rows: list[Any] = list(prompt_token_ids)
            if rows and isinstance(rows[0], int):
                rows = [rows]
            return [None] * len(rows), [list(r) for r in rows]
        if prompts is None:
            raise ValueError("give prompts or prompt_token_ids")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        return texts, [self._encode(i, text) for i, text in enumerate(texts)]

    def _encode(self, index: int, text: str) -> list[int]:
        if not isinstance(text, str):
            raise ValueError(f"prompt {index} is {text!r}; allowed: a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"prompt {index} is not valid Unicode: {error.reason} at {error.start}") from error
        if not text:
            return []
        bos = "<｜begin▁of▁sentence｜>"
        return self.engine.encode(text if text.startswith(bos) else bos + text)


class _Progress:
    """A line on stderr that counts finished answers."""

    def __init__(self, total: int) -> None:
        self.total, self.shown = total, -1

    def __call__(self, finished: int) -> None:
        """Shows the number of answers that are finished."""
        if finished != self.shown:
            end = "\n" if finished == self.total else ""
            sys.stderr.write(f"\r{finished} of {self.total} answers{end}")
            sys.stderr.flush()
            self.shown = finished
