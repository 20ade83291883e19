"""SamplingParams: how one prompt is decoded; every value is checked when it is made. A leaf: imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from wedlm_core.checks import is_flag, is_number, is_text, is_whole
from wedlm_core.errors import RequestError, explain
from wedlm_core.option_names import SAMPLING_NAMES, known_fields_only
from wedlm_core.structured_outputs import StructuredOutputs

DEFAULT_WINDOW = 16
"""Masks per forward for ``window_size="auto"`` where the rule fixes the window (``reference``, ``blockwise``)."""


class Strategy(StrEnum):
    """How tokens are chosen and committed (docs/design/decoding.md)."""

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
_LONGEST_WORD = 256
_MOST_TOPS = 100  # most likely tokens that are reported with each token
_MOST_BIAS = 100.0
_TEMPERATURES = (1e-6, 1e6)  # float32 logits divided by these are neither infinite nor all equal
_PENALTIES = (1e-3, 1e3)  # logits times these are still told apart
_MOST_NATS = 1e6


def _is_list(value: object) -> bool:
    """A list, or an equivalent, of a sane length."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) <= _MOST_STOPS


_UNORDERED = "chooses a token before those in front of it are known"


def _as_texts(texts: Any) -> Any:
    """A string as a list of it, None as an empty list."""
    return (texts,) if isinstance(texts, str) else () if texts is None else texts


def _pairs(bias: Any) -> list[tuple[Any, Any]] | None:
    """Token id and value of each entry of a mapping, or of pairs, by id; None where it is neither."""
    listed = list(bias.items()) if isinstance(bias, Mapping) else bias
    if listed is None:
        return []
    if not _is_list(listed) or not all(_is_list(pair) and len(pair) == 2 for pair in listed):
        return None
    # JSON has only text for keys; a struct column has a null for a field that a row leaves out.
    pairs = [(int(k) if isinstance(k, str) and k.isdecimal() else k, v) for k, v in listed if v is not None]
    fits = all(is_whole(k) and is_number(v, -_MOST_BIAS, _MOST_BIAS) for k, v in pairs)
    return sorted((k, float(v)) for k, v in pairs) if fits and len({k for k, _ in pairs}) == len(pairs) else None


@known_fields_only(RequestError, SAMPLING_NAMES)
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one prompt is decoded. Names follow vLLM where vLLM has the notion.

    Attributes:
        max_tokens: tokens to generate at most; 0 gives an empty generation.
        min_tokens: no stop token is chosen, and no stop string ends the text, before this number of tokens.
        temperature: 0 is greedy (argmax); otherwise logits are divided by it, then min-p, top-k, top-p; from 1e-6
            to 1e6.
        top_p: smallest set of tokens whose probability reaches this, in (0, 1].
        top_k: keep this many most likely tokens; 0 (or -1) keeps all.
        min_p: keep the tokens that are at least this share as likely as the most likely one, in [0, 1].
        repetition_penalty: logits of tokens in the prompt or the output are divided by it where positive, else
            multiplied; above 1 discourages. From 1e-3 to 1e3.
        presence_penalty: taken from the logit of each token that the output has, in [-2, 2].
        frequency_penalty: taken from a token's logit once for each time that the output has the token, in [-2, 2].
        logit_bias: token id -> number to add to its logit, from -100 to 100; kept as sorted pairs.
        suppress_tokens: token ids that are never chosen.
        bad_words: texts that are not generated: the token that would complete one is never chosen. Only for strategies
            that verify, like the penalties.
        seed: seed of the counter-based noise; None derives one from the engine's seed and the request.
        stop: strings that end the text at their first occurrence; not part of ``text``.
        stop_token_ids: token ids that end the generation; kept in ``token_ids``.
        ignore_eos: do not stop at the tokenizer's or model's end-of-sequence token.
        n: samples per prompt, 10,000 at most; each is a Generation of its own.
        logprobs: return the log-probability of each token under the next-token head (strategies
            ``verified`` and ``autoregressive``; nats, of the model's own distribution: at temperature 1, without
            filters, penalties and biases; 0 for a token that ``structured_outputs`` forces). A number k from 1 to 100
            returns the k most likely tokens too (``Generation.top_logprobs``); 0 is True, None is False.
        structured_outputs: the form of the output: JSON of a schema, a match of a regex, a choice, a text of a
            grammar (:class:`StructuredOutputs`, or its fields as a mapping). For strategies that verify. It decides
            where the output ends, so it excludes ``stop``, ``stop_token_ids``, ``ignore_eos`` and ``min_tokens``.
        strategy: see :class:`Strategy`.
        window_size: masks per forward; "auto" lets the engine choose per forward by load and by how well drafts
            survive (``verified``, ``streaming``), and is 16 for the strategies whose rule fixes the window.
        entropy_threshold: nats; a mask is filled when its penalised entropy is below; None fills one.
        position_penalty: nats per logical position of distance to the leftmost mask (lambda in the paper).

    Raises:
        RequestError: a value is outside its range; the message names value, rule and remedy.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None = ()
    suppress_tokens: Sequence[int] | None = ()
    bad_words: Sequence[str] | str | None = ()
    seed: int | None = None
    stop: Sequence[str] | str = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: bool | int | None = False
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None
    strategy: Strategy | str = Strategy.VERIFIED
    window_size: int | Literal["auto"] = "auto"
    entropy_threshold: float | None = 0.4
    position_penalty: float = 0.02

    def __post_init__(self) -> None:
        """Normalise sequences to tuples and check every field."""
        stop, ids, words, suppressed = (
            _as_texts(self.stop),
            () if self.stop_token_ids is None else self.stop_token_ids,
            _as_texts(self.bad_words),
            () if self.suppress_tokens is None else self.suppress_tokens,
        )
        bias = _pairs(self.logit_bias)
        _require(
            _is_list(stop) and all(is_text(s) and 1 <= len(s) <= _LONGEST_STOP for s in stop),
            "stop",
            self.stop,
            f"at most {_MOST_STOPS} strings of 1 to {_LONGEST_STOP} characters, each valid Unicode",
            "Pass a string or a list of strings.",
        )
        for name, listed in (("stop_token_ids", ids), ("suppress_tokens", suppressed)):
            _require(
                _is_list(listed) and all(is_whole(i) for i in listed),
                name,
                listed,
                f"at most {_MOST_STOPS} token ids, integers of 0 or more, below 2**31",
                "Pass a list of integers.",
            )
        _require(
            _is_list(words) and all(is_text(w) and w.strip() and len(w) <= _LONGEST_WORD for w in words),
            "bad_words",
            self.bad_words,
            f"at most {_MOST_STOPS} strings of 1 to {_LONGEST_WORD} characters, not all spaces, each valid Unicode",
            "Pass a list of strings.",
        )
        _require(
            bias is not None,
            "logit_bias",
            self.logit_bias,
            f"at most {_MOST_STOPS} different token ids, each with a number from {-_MOST_BIAS:g} to {_MOST_BIAS:g}",
            "Pass {token_id: bias}; bad_words keeps a word out for certain.",
        )
        names = [s.value for s in Strategy]
        _require(self.strategy in names, "strategy", self.strategy, f"one of {names}", "Pick one of these.")
        settled: dict[str, Any] = {"stop": tuple(stop), "stop_token_ids": tuple(ids), "bad_words": tuple(words),
                   "logit_bias": tuple(bias or ()), "suppress_tokens": tuple(suppressed),
                   "strategy": Strategy(self.strategy)}  # fmt: skip
        if type(self.top_k) is int and self.top_k == -1:  # all of them, in vLLM's words
            settled["top_k"] = 0
        if self.logprobs is None or (type(self.logprobs) is int and self.logprobs == 0):
            settled["logprobs"] = self.logprobs is not None
        if isinstance(self.structured_outputs, Mapping):
            settled["structured_outputs"] = StructuredOutputs(**self.structured_outputs)
        for name, value in settled.items():
            object.__setattr__(self, name, value)
        self._check_numbers()
        self._check_structured_outputs()
        self._check_strategy()

    def _check_numbers(self) -> None:
        threshold, low, high = self.entropy_threshold, *_TEMPERATURES
        warm = is_number(self.temperature, 0, 0) or is_number(self.temperature, low, high)
        window_fits = self.window_size == "auto" or is_whole(self.window_size, 1)
        seed_fits = self.seed is None or is_whole(self.seed, 0, 2**63 - 1)
        sane_p = is_number(self.top_p, 0, 1) and self.top_p > 0
        tops = is_flag(self.logprobs) or is_whole(self.logprobs, 0, _MOST_TOPS)
        nats = f"nats of 0 or more, {_MOST_NATS:g} at most"
        checks = (
            ("max_tokens", is_whole(self.max_tokens), "an integer of 0 or more, below 2**31", "Give a count."),
            ("min_tokens", is_whole(self.min_tokens), "an integer of 0 or more, below 2**31", "Use 0 for none."),
            ("temperature", warm, f"a finite number, 0 or more: 0, or from {low:g} to {high:g}", "Use 0 for greedy."),
            ("top_p", sane_p, "in (0, 1]", "Use 1.0 to keep every token."),
            ("top_k", is_whole(self.top_k), "an integer of 0 or more, below 2**31", "Use 0 to keep every token."),
            ("min_p", is_number(self.min_p, 0, 1), "in [0, 1]", "Use 0 to keep every token."),
            ("repetition_penalty", is_number(self.repetition_penalty, *_PENALTIES),
             f"a finite number from {_PENALTIES[0]:g} to {_PENALTIES[1]:g}", "Use 1.0 for none."),
            ("presence_penalty", is_number(self.presence_penalty, -2, 2), "in [-2, 2]", "Use 0 for none."),
            ("frequency_penalty", is_number(self.frequency_penalty, -2, 2), "in [-2, 2]", "Use 0 for none."),
            ("seed", seed_fits, "None or an integer in [0, 2**63)", "Drop it or pick one in range."),
            ("n", is_whole(self.n, 1, _MOST_SAMPLES), f"an integer of 1 or more, {_MOST_SAMPLES} at most",
             "Set how many samples each prompt gets."),
            ("window_size", window_fits, '"auto" or an integer of 1 or more, below 2**31',
             'For none: strategy="autoregressive".'),
            ("entropy_threshold", threshold is None or is_number(threshold, 0, _MOST_NATS), f"None or {nats}",
             "Use None to fill one position a step."),
            ("position_penalty", is_number(self.position_penalty, 0, _MOST_NATS), nats, "Use 0 for no penalty."),
            ("ignore_eos", is_flag(self.ignore_eos), "true or false", "Pass a bool."),
            ("logprobs", tops, f"true, false, or an integer from 0 to {_MOST_TOPS}",
             "Pass True, or how many of the most likely tokens you want to see."),
        )  # fmt: skip
        for name, fits, rule, remedy in checks:
            _require(fits, name, getattr(self, name), rule, remedy)

    def _check_structured_outputs(self) -> None:
        """Refuse fields that contradict other rules for the output's end."""
        given = self.structured_outputs
        _require(
            given is None or isinstance(given, StructuredOutputs), "structured_outputs", given,
            "StructuredOutputs, or a mapping of its fields", 'Pass StructuredOutputs(json={"type": ...}).',
        )  # fmt: skip
        if given is None:
            return
        for name, off in (("stop", ()), ("stop_token_ids", ()), ("ignore_eos", False), ("min_tokens", 0)):
            value = getattr(self, name)
            _require(value == off, name, value, "structured_outputs says where the output ends",
                     f"Drop {name}, or structured_outputs.")  # fmt: skip

    def _check_strategy(self) -> None:
        """Refuse fields that contradict ``max_tokens`` or the strategy."""
        _require(
            self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"at most max_tokens = {self.max_tokens}",
            "Lower min_tokens or raise max_tokens.",
        )
        if self.verifies:
            return
        own = f"strategy {str(self.strategy)!r}"
        for name, off, rule in (
            ("logprobs", False, "has no next-token distribution for its tokens"),
            ("repetition_penalty", 1.0, _UNORDERED),
            ("presence_penalty", 0.0, _UNORDERED),
            ("frequency_penalty", 0.0, _UNORDERED),
            ("bad_words", (), _UNORDERED),
            ("structured_outputs", None, _UNORDERED),
        ):
            value = getattr(self, name)
            _require(value == off, name, value, f"{own} {rule}", 'Use strategy "verified" or "autoregressive".')

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` as it is kept: pairs of token id and bias, by id."""
        return self.logit_bias or ()  # type: ignore[return-value]

    @property
    def structure(self) -> StructuredOutputs | None:
        """``structured_outputs`` as it is kept."""
        return self.structured_outputs  # type: ignore[return-value]

    @property
    def top_logprobs(self) -> int:
        """How many of the most likely tokens are returned with each token."""
        return self.logprobs if type(self.logprobs) is int else 0

    @property
    def adaptive(self) -> bool:
        """Whether the engine chooses the window forward by forward."""
        return self.window_size == "auto" and self.strategy in (Strategy.VERIFIED, Strategy.STREAMING)

    @property
    def verifies(self) -> bool:
        """Whether each token is chosen after the tokens before it are known, or verified then."""
        return self.strategy in (Strategy.VERIFIED, Strategy.AUTOREGRESSIVE)

    @property
    def needs_masks(self) -> bool:
        """Whether every forward has masks: ``verified`` with a window that the engine chooses can do without."""
        return self.window > 0 and not (self.adaptive and self.strategy == Strategy.VERIFIED)

    @property
    def window(self) -> int:
        """Masks per forward where the window is fixed: 0 for ``autoregressive``, 16 for "auto"."""
        if self.strategy == Strategy.AUTOREGRESSIVE:
            return 0
        return DEFAULT_WINDOW if self.window_size == "auto" else int(self.window_size)
