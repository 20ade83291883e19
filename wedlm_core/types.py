"""Frozen values at the border of the engine: requests and generations. A leaf: imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from wedlm_core.evidence import Evidence, evidence_of
from wedlm_core.sampling_params import DEFAULT_WINDOW, SamplingParams, Strategy
from wedlm_core.statistics import CommitStats
from wedlm_core.structured_outputs import StructuredOutputs

__all__ = [
    "DEFAULT_WINDOW",
    "CommitStats",
    "CompletionOutput",
    "Delta",
    "Evidence",
    "FinishReason",
    "Generation",
    "Logprob",
    "Request",
    "SamplingParams",
    "ScoreOutput",
    "Strategy",
    "StructuredOutputs",
    "Timings",
]


class FinishReason(StrEnum):
    """Why a generation ended: a stop token or string, the token limit, or an error."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sample of one prompt, tokenised: a request of the engine.

    Attributes:
        request_id: the caller's key; comes back on the Generation. Unique among unfinished requests.
        prompt_token_ids: token ids, at least one.
        params: sampling parameters; ``params.n`` is not expanded here (the caller makes n requests).
        seed: the seed of this sample's noise, in [0, 2**63).
        sample_index: which of the prompt's samples this is.
        continuation: if not empty, nothing is generated: these tokens get log-probabilities, as in ``LLM.score``.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int = 0
    sample_index: int = 0
    continuation: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Wall-clock seconds of one generation: waiting for its first forward, then until it finished."""

    queue_seconds: float = 0.0
    run_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One finished sample.

    Attributes:
        text: decoded ``token_ids`` without special tokens, cut at the first stop string.
        token_ids: generated ids; a stop token is kept, tokens after it are dropped.
        finish_reason: see :class:`FinishReason`.
        error: message when ``finish_reason`` is ``error``, else None.
        logprobs: nats per token when asked for, else None.
        top_logprobs: with ``logprobs=k``, for each token the k most likely tokens at its place, as pairs of token id
            and nats, the most likely first; a token that ``structured_outputs`` forces stands alone. Else None.
        prompt_token_ids: ids of the prompt.
        prompt: its text, where ``LLM`` was given text or a chat.
        trace: one mapping per decode forward when ``EngineConfig(trace=True)``, else None.
    """

    request_id: str
    sample_index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    finish_reason: FinishReason = FinishReason.LENGTH
    error: str | None = None
    seed: int = 0
    stats: CommitStats = field(default_factory=CommitStats)
    timings: Timings = field(default_factory=Timings)
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    prompt_token_ids: tuple[int, ...] = field(default=(), repr=False)
    prompt: str | None = field(default=None, repr=False)
    trace: tuple[Mapping[str, Any], ...] | None = None

    @property
    def evidence(self) -> Evidence:
        """Evidence for or against it."""
        truncated = self.finish_reason is FinishReason.LENGTH
        return evidence_of(self.stats, self.token_ids, self.text, truncated=truncated)

    @property
    def outputs(self) -> tuple[CompletionOutput, ...]:
        """The sample under vLLM's names: one output, as each sample of ``n`` is a generation of its own."""
        return (CompletionOutput(self),)

    @property
    def finished(self) -> bool:
        """Always True, for code that asks: a returned generation has finished."""
        return True


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability in nats, and its place among the most likely (1 is the first; None: not known)."""

    logprob: float
    rank: int | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """A generation under the names of vLLM's ``CompletionOutput``; its values are the generation's."""

    generation: Generation

    @property
    def index(self) -> int:
        """Number of the sample among those of its prompt."""
        return self.generation.sample_index

    @property
    def text(self) -> str:
        """The generated text."""
        return self.generation.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The generated tokens."""
        return self.generation.token_ids

    @property
    def finish_reason(self) -> str:
        """``stop``, ``length`` or ``error``."""
        return self.generation.finish_reason.value

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of ``Generation.logprobs``; None without them."""
        return None if self.generation.logprobs is None else sum(self.generation.logprobs)

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """For each token its own log-probability and those of the most likely ones, by token id; None without them."""
        own, tops = self.generation.logprobs, self.generation.top_logprobs
        if own is None:
            return None
        places = tops or ((),) * len(own)
        return [
            {token: Logprob(nats)} | {i: Logprob(value, rank) for rank, (i, value) in enumerate(top, start=1)}
            for token, nats, top in zip(self.token_ids, own, places, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of a streamed generation: whole characters and the tokens committed since the last piece.

    ``generation`` is set on the last piece only.
    """

    text: str
    token_ids: tuple[int, ...]
    generation: Generation | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreOutput:
    """How likely the model finds given tokens after a context, under its next-token head.

    Attributes:
        token_ids: the tokens that were scored.
        logprobs: nats of each, given all tokens before it; of the model's own distribution over its whole vocabulary.
        greedy: whether each is the most likely token at its place (the first of equal ones).
        context_tokens: tokens in front of them, after truncation.
        truncated_tokens: tokens that were dropped at the beginning of the context.
        cached_tokens: tokens of the context that were not computed again, as another sequence began with them.
        error: why the log-probabilities mean nothing (they are NaN then), else None.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    context_tokens: int
    truncated_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None

    @property
    def logprob(self) -> float:
        """Log-probability of all tokens together, in nats."""
        return math.fsum(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding from the context gives these very tokens."""
        return all(self.greedy)

    @property
    def perplexity(self) -> float:
        """``exp`` of the mean negative log-probability of a token."""
        return math.exp(-self.logprob / len(self.logprobs))
