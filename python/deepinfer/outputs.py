"""What generate() returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from deepinfer import _core


@dataclass
class CompletionOutput:
    """One answer. `logprobs` holds one value a token if asked for, `top_logprobs` lists of (token id, value)."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[float | None]
    top_logprobs: list[list[tuple[int, float]]]
    finish_reason: str  # "stop", "length", "cancelled", "deadline" or "error"
    error: str
    usage: _core.Usage


@dataclass
class RequestOutput:
    """One prompt with its answers, in the order of the prompts."""

    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[float | None] = field(default_factory=list)
    outputs: list[CompletionOutput] = field(default_factory=list)

    @classmethod
    def from_core(cls, prompt: str | None, core: _core.RequestOutput) -> RequestOutput:
        """Copies the engine's result."""
        outputs = [
            CompletionOutput(
                index=c.index,
                text=c.text,
                token_ids=list(c.token_ids),
                logprobs=list(c.logprobs),
                top_logprobs=[[(t.token, t.logprob) for t in top] for top in c.top_logprobs],
                finish_reason=c.finish_reason,
                error=c.error,
                usage=c.usage,
            )
            for c in core.outputs
        ]
        return cls(prompt, list(core.prompt_token_ids), list(core.prompt_logprobs), outputs)
