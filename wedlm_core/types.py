"""Frozen values at the border of the engine: what goes in, what comes out. A leaf: imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from wedlm_core.checks import is_flag, is_number, is_text, is_whole
from wedlm_core.errors import RequestError, explain
from wedlm_core.statistics import CommitStats

__all__ = [
    "DEFAULT_WINDOW",
    "CommitStats",
    "Delta",
    "FinishReason",
    "Generation",
    "Request",
    "SamplingParams",
    "Strategy",
    "Timings",
]

DEFAULT_WINDOW = 16
"""Masks per forward for ``window_size="auto"`` where the rule fixes the window (``reference``, ``blockwise``)."""


class FinishReason(StrEnum):
    """Why a generation ended: a stop token or string, the token limit, or an error."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


class Strategy(StrEnum):
    """How tokens are chosen and committed (docs/DESIGN.md, "Decoding semantics")."""

    VERIFIED = "verified"
    REFERENCE = "reference"
    STREAMING = "streaming"
    AUTOREGRESSIVE = "autoregressive"
    BLOCKWISE = "blockwise"


def _require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    if not ok:
        raise RequestError(explain(name, value, rule, remedy))


_MOST_SAMPLES = 10_000  # each is a request of its own
_MOST_STOPS = 1024  # they are looked for at every token
_LONGEST_STOP = 4096
_TEMPERATURES = (1e-6, 1e6)  # float32 logits divided by these are neither infinite nor all alike
_MOST_NATS = 1e6


def _is_list(value: object) -> bool:
    """A list, or what is as good as one, of a sane length."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) <= _MOST_STOPS


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one prompt is decoded. Names follow vLLM where vLLM has the notion.

    Attributes:
        max_tokens: tokens to generate at most; 0 gives an empty generation.
        temperature: 0 is greedy (argmax); otherwise logits are divided by it, then top-k, then top-p; from 1e-6
            to 1e6.
        top_p: smallest set of tokens whose probability reaches this, in (0, 1].
        top_k: keep this many most likely tokens; 0 keeps all.
        seed: seed of the counter-based noise; None derives one from the engine's seed and the request.
        stop: strings that end the text at their first occurrence; not part of ``text``.
        stop_token_ids: token ids that end the generation; kept in ``token_ids``.
        ignore_eos: do not stop at the tokenizer's or model's end-of-sequence token.
        n: samples per prompt, 10,000 at most; each is a Generation of its own.
        logprobs: return the log-probability of each token under the next-token head (strategies
            ``verified`` and ``autoregressive``; nats, of the unfiltered distribution at temperature 1).
        strategy: see :class:`Strategy`.
        window_size: masks per forward; "auto" lets the engine choose per forward by load and by how well drafts
            survive (``verified``, ``streaming``), and is 16 for the strategies whose rule fixes the window.
        entropy_threshold: nats; a mask is filled when its penalised entropy is below; None fills one.
        position_penalty: nats per logical position of distance to the leftmost mask (lambda in the paper).

    Raises:
        RequestError: a value is outside its range; the message names value, rule and remedy.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: Sequence[str] | str = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: bool = False
    strategy: Strategy | str = Strategy.VERIFIED
    window_size: int | Literal["auto"] = "auto"
    entropy_threshold: float | None = 0.4
    position_penalty: float = 0.02

    def __post_init__(self) -> None:
        """Normalise sequences to tuples and check every field."""
        stop, ids = (self.stop,) if isinstance(self.stop, str) else self.stop, self.stop_token_ids
        _require(
            _is_list(stop) and all(is_text(s) and 1 <= len(s) <= _LONGEST_STOP for s in stop),
            "stop",
            self.stop,
            f"at most {_MOST_STOPS} strings of 1 to {_LONGEST_STOP} characters, each valid Unicode",
            "Pass a string or a list of strings.",
        )
        _require(
            _is_list(ids) and all(is_whole(i) for i in ids),
            "stop_token_ids",
            ids,
            f"at most {_MOST_STOPS} token ids, integers of 0 or more, below 2**31",
            "Pass a list of integers.",
        )
        names = [s.value for s in Strategy]
        _require(self.strategy in names, "strategy", self.strategy, f"one of {names}", "Pick one of these.")
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_token_ids", tuple(ids))
        object.__setattr__(self, "strategy", Strategy(self.strategy))
        self._check_numbers()

    def _check_numbers(self) -> None:
        threshold, low, high = self.entropy_threshold, *_TEMPERATURES
        warm = is_number(self.temperature, 0, 0) or is_number(self.temperature, low, high)
        window_fits = self.window_size == "auto" or is_whole(self.window_size, 1)
        seed_fits = self.seed is None or is_whole(self.seed, 0, 2**63 - 1)
        sane_p = is_number(self.top_p, 0, 1) and self.top_p > 0
        nats = f"nats of 0 or more, {_MOST_NATS:g} at most"
        checks = (
            ("max_tokens", is_whole(self.max_tokens), "an integer of 0 or more, below 2**31", "Give a count."),
            ("temperature", warm, f"a finite number, 0 or more: 0, or from {low:g} to {high:g}", "Use 0 for greedy."),
            ("top_p", sane_p, "in (0, 1]", "Use 1.0 to keep every token."),
            ("top_k", is_whole(self.top_k), "an integer of 0 or more, below 2**31", "Use 0 to keep every token."),
            ("seed", seed_fits, "None or an integer in [0, 2**63)", "Drop it or pick one in range."),
            ("n", is_whole(self.n, 1, _MOST_SAMPLES), f"an integer of 1 or more, {_MOST_SAMPLES} at most",
             "Set how many samples each prompt gets."),
            ("window_size", window_fits, '"auto" or an integer of 1 or more, below 2**31',
             'For none: strategy="autoregressive".'),
            ("entropy_threshold", threshold is None or is_number(threshold, 0, _MOST_NATS), f"None or {nats}",
             "Use None to fill one position a step."),
            ("position_penalty", is_number(self.position_penalty, 0, _MOST_NATS), nats, "Use 0 for no penalty."),
            ("ignore_eos", is_flag(self.ignore_eos), "true or false", "Pass a bool."),
            ("logprobs", is_flag(self.logprobs), "true or false", "Pass a bool."),
        )  # fmt: skip
        for name, fits, rule, remedy in checks:
            _require(fits, name, getattr(self, name), rule, remedy)
        has_head = self.strategy in (Strategy.VERIFIED, Strategy.AUTOREGRESSIVE)
        _require(
            not self.logprobs or has_head,
            "logprobs",
            self.logprobs,
            f"strategy {str(self.strategy)!r} has no next-token distribution for its tokens",
            'Use strategy "verified" or "autoregressive".',
        )

    @property
    def adaptive(self) -> bool:
        """Whether the engine chooses the window forward by forward."""
        return self.window_size == "auto" and self.strategy in (Strategy.VERIFIED, Strategy.STREAMING)

    @property
    def window(self) -> int:
        """Masks per forward where the window is fixed: 0 for ``autoregressive``, 16 for "auto"."""
        if self.strategy == Strategy.AUTOREGRESSIVE:
            return 0
        return DEFAULT_WINDOW if self.window_size == "auto" else int(self.window_size)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sample of one prompt, tokenised: what the engine takes.

    Attributes:
        request_id: the caller's key; comes back on the Generation. Unique among unfinished requests.
        prompt_token_ids: token ids, at least one.
        params: sampling parameters; ``params.n`` is not expanded here (the caller makes n requests).
        seed: the seed of this sample's noise, in [0, 2**63).
        sample_index: which of the prompt's samples this is.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int = 0
    sample_index: int = 0


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
        token_ids: generated ids; a stop token is kept, what follows it is dropped.
        finish_reason: see :class:`FinishReason`.
        error: message when ``finish_reason`` is ``error``, else None.
        logprobs: nats per token when asked for, else None.
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
    trace: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of a streamed generation: whole characters and the tokens committed since the last piece.

    ``generation`` is set on the last piece only.
    """

    text: str
    token_ids: tuple[int, ...]
    generation: Generation | None = None
