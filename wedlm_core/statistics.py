"""Statistics of one generation: of a forward, of a slot, and of a finished generation.

Three tables, one for each step; everything that handles statistics follows from them:

1. :class:`StepOutcome`: the columns that a forward reports. The copy from the device, the join of groups and the
   output of the CPU step kernel have exactly these columns.
2. :data:`COUNTS` and :data:`NATS`: sums of a slot, forward by forward. The slot table has exactly these columns, and a
   histogram of emitted tokens.
3. :data:`STATISTICS`: how the values of :class:`CommitStats` follow, and the Arrow types of the pipeline's ``stats``.

A leaf: imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import zip_longest
from operator import mul
from typing import Any, Protocol

import numpy as np

from wedlm_core.errors import IntegrityError

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class DraftSource(IntEnum):
    """Where a draft comes from: a mask's proposal, a grammar that allows nothing else, earlier text."""

    MASK = 0
    GRAMMAR = 1
    HISTORY = 2


DRAFT_SOURCES = tuple(source.name.lower() for source in DraftSource)
"""Names of the sources, as the columns of ``stats`` begin."""
DRAFT_COUNTS = tuple(f"{source}_drafts{suffix}" for source in DRAFT_SOURCES for suffix in ("", "_accepted"))
"""Fields of :class:`CommitStats` that count drafts by source: those offered, and those that became output."""


# ---- 1. reported by a forward -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TopTokens:
    """The K most likely tokens at each place of the commits of H decoding sequences.

    Attributes:
        member_H: int64, which of the D decoding sequences each is, ascending.
        token_HCK: int64 token ids, most likely first.
        logprob_HCK: float32 nats.
    """

    member_H: IntArray
    token_HCK: IntArray
    logprob_HCK: FloatArray

    def only(self, keep_D: BoolArray) -> TopTokens:
        """Of the sequences that are kept, counted among these."""
        keep_H = keep_D[self.member_H]
        return TopTokens(
            member_H=(np.cumsum(keep_D) - 1)[self.member_H[keep_H]],
            token_HCK=self.token_HCK[keep_H],
            logprob_HCK=self.logprob_HCK[keep_H],
        )


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """Commits of a forward for its D decoding sequences, on the host.

    Columns ``_D`` have one value per sequence, columns ``_DC`` one for each of C places; the first ``count_D`` of them
    count. A column is named as the field of :class:`wedlm_core.decoding.strategies.Commit` that it comes from, up to
    the suffix.

    Attributes:
        count_D: committed tokens.
        next_rows_D: decode rows of the next forward.
        context_D: tokens whose KV became final.
        drafts_D, agreed_D: verified drafts, and those that were right.
        offered_D, valid_D, next_valid_D: as in ``Commit``.
        token_DC: token ids.
        entropy_DC, logprob_DC: nats.
        early_DC: the token was filled while a position before it was a mask.
        tops: the most likely tokens of sequences that report them; None where there are none.

    Raises:
        IntegrityError: a column has another dtype than its annotation says, or is not C-contiguous. Flags are used as
            masks and as indices; integers in their place would be taken for something else without an error.
    """

    count_D: IntArray
    next_rows_D: IntArray
    context_D: IntArray
    drafts_D: IntArray
    agreed_D: IntArray
    offered_D: IntArray
    valid_D: BoolArray
    next_valid_D: BoolArray
    token_DC: IntArray
    entropy_DC: FloatArray
    logprob_DC: FloatArray
    early_DC: BoolArray
    tops: TopTokens | None = None

    def __post_init__(self) -> None:
        """Check the columns, whoever made them: a kernel, a copy from the device, a join of groups."""
        for name, kind in OUTCOME_KINDS.items():
            found = getattr(self, name)
            if found.dtype != kind:
                raise IntegrityError(f"{name} of a forward's outcome is {found.dtype} and has to be {kind}")
            if not found.flags.c_contiguous:
                raise IntegrityError(f"{name} of a forward's outcome is spread in memory and has to be C-contiguous")


_KINDS: Mapping[str, type[np.generic]] = {"IntArray": np.int64, "FloatArray": np.float32, "BoolArray": np.bool_}
OUTCOME_KINDS: Mapping[str, np.dtype[Any]] = {
    f.name: np.dtype(_KINDS[str(f.type)]) for f in fields(StepOutcome) if str(f.type) in _KINDS
}
"""Dtype of each column of :class:`StepOutcome`, in its order."""


# ---- 2. added up by a slot ----------------------------------------------------------------------------


COUNTS = (
    "forwards",
    "rows",
    "widest_window",
    "early",
    "tested",
    *(f"{source}_{what}" for source in DRAFT_SOURCES for what in ("drafts", "accepted")),
)
"""Totals that are integers, in the order of :class:`Totals`."""
NATS = ("entropy", "largest_entropy", "logprob", "largest_surprise")
"""Totals in nats, likewise."""


class Totals(Mapping[str, np.ndarray]):
    """The totals of slots by name, ``[slots]``; of a histogram ``[slots, most_emitted + 1]``. Zeros at first.

    Attributes:
        counts: int64 ``[COUNTS, slots]``.
        nats: float64 ``[NATS, slots]``.
        emitted: int64 ``[slots, most_emitted + 1]``, the histogram.
    """

    def __init__(self, slots: int, most_emitted: int) -> None:
        self.counts = np.zeros((len(COUNTS), slots), dtype=np.int64)
        self.nats = np.zeros((len(NATS), slots), dtype=np.float64)
        self.emitted = np.zeros((slots, most_emitted + 1), dtype=np.int64)
        lines = (*zip(COUNTS, self.counts, strict=True), *zip(NATS, self.nats, strict=True), ("emitted", self.emitted))
        self._lines: dict[str, np.ndarray] = dict(lines)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._lines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def of(self, slot: int) -> dict[str, Any]:
        """The totals of a slot as Python numbers; the histogram is a list."""
        found: dict[str, Any] = dict(zip(COUNTS, self.counts[:, slot].tolist(), strict=True))
        found.update(zip(NATS, self.nats[:, slot].tolist(), strict=True))
        found["emitted"] = self.emitted[slot].tolist()
        return found


# ---- 3. shown by a finished generation --------------------------------------------------------------


def tokens_per_forward(tokens: int, forwards: int) -> float:
    """Divide generated tokens by decode forwards; 0 without forwards. Autoregressive decoding has exactly 1.

    Args:
        tokens: of one generation or of several.
        forwards: their decode forwards, see :class:`CommitStats`.
    """
    return tokens / forwards if forwards else 0.0


def prefix_cacheability(tokens: int, rows: int) -> float:
    """Divide generated tokens by the rows of decode forwards: p_cache = N_gen / N_fwd (arXiv 2512.22737, equation 4).

    It is at most 1, since a forward commits at most one token for each row; and 1 without rows.
    """
    return tokens / rows if rows else 1.0


def gain_of(autoregressive_seconds: float, decode_seconds: float) -> float | None:
    """Divide the seconds that autoregressive decoding would take by those that decoding took; None if none are counted.

    Args:
        autoregressive_seconds: expected for the same tokens at the same load.
        decode_seconds: measured, prefill left out. Both may be sums over engines.
    """
    return autoregressive_seconds / decode_seconds if decode_seconds > 0 else None


@dataclass(frozen=True, kw_only=True)
class CommitStats:
    """Decoding statistics of one generation; counts are of its sequence alone.

    Attributes:
        generated_tokens: N_gen, the tokens in ``token_ids``.
        decode_forwards: forwards that could commit a token of this sequence. Forwards that only read its prompt do not
            count. One that reads the prompt's last token counts where the strategy takes the first token from it
            (``autoregressive``, ``verified``, ``streaming``).
        rows_forwarded: N_fwd, token rows of the sequence in these forwards: last tokens, drafts, masks.
        commit_histogram: entry i is the number of decode forwards that committed i tokens.
        mean_entropy, max_entropy: nats, over the emitted tokens, of the distribution each was taken from
            (at fill for masks; at verification for ``verified``); None when nothing was generated.
        out_of_order_fills: emitted tokens that were filled while a position before them was still a mask.
        mean_logprob: mean log-probability (nats) of the emitted tokens under the next-token head; None
            where the strategy does not compute it.
        worst_logprob: the lowest of these log-probabilities, or None.
        draft_agreement: share of the masks' verified drafts that equalled the next-token head's choice; None where
            none was verified.
        mask_drafts, mask_drafts_accepted: rows of drafts that masks had proposed, and those that became output.
        grammar_drafts, grammar_drafts_accepted: the same of drafts that a grammar forced.
        history_drafts, history_drafts_accepted: the same of drafts from earlier text.
        cached_prompt_tokens: prompt tokens whose KV came from the prefix cache.
        preemptions: times the sequence lost its pages and was recomputed.
        window_mean, max_window: mean and largest number of rows of this sequence in a decode forward.
    """

    generated_tokens: int = 0
    decode_forwards: int = 0
    rows_forwarded: int = 0
    commit_histogram: tuple[int, ...] = ()
    mean_entropy: float | None = None
    max_entropy: float | None = None
    out_of_order_fills: int = 0
    mean_logprob: float | None = None
    worst_logprob: float | None = None
    draft_agreement: float | None = None
    mask_drafts: int = 0
    mask_drafts_accepted: int = 0
    grammar_drafts: int = 0
    grammar_drafts_accepted: int = 0
    history_drafts: int = 0
    history_drafts_accepted: int = 0
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    window_mean: float = 0.0
    max_window: int = 0

    @property
    def tokens_per_forward(self) -> float:
        """See :func:`tokens_per_forward`."""
        return tokens_per_forward(self.generated_tokens, self.decode_forwards)

    @property
    def prefix_cacheability(self) -> float:
        """See :func:`prefix_cacheability`."""
        return prefix_cacheability(self.generated_tokens, self.rows_forwarded)


def stats_of_several(parts: Sequence[CommitStats]) -> CommitStats:
    """The statistics of several generations together: sums of counts, means weighted by their tokens.

    ``draft_agreement`` is weighted by ``mask_drafts``, as the number of verified drafts is not kept.
    """

    def known(name: str) -> list[Any]:
        return [value for part in parts if (value := getattr(part, name)) is not None]

    def mean(name: str, weight: str = "generated_tokens") -> float | None:
        weights = [getattr(part, weight) for part in parts if getattr(part, name) is not None]
        return math.fsum(map(mul, known(name), weights)) / sum(weights) if sum(weights) else None

    own: dict[str, Any] = {
        "commit_histogram": tuple(map(sum, zip_longest(*known("commit_histogram"), fillvalue=0))),
        "mean_entropy": mean("mean_entropy"),
        "max_entropy": max(known("max_entropy"), default=None),
        "mean_logprob": mean("mean_logprob"),
        "worst_logprob": min(known("worst_logprob"), default=None),
        "draft_agreement": mean("draft_agreement", "mask_drafts"),
        "window_mean": mean("window_mean", "decode_forwards") or 0.0,
        "max_window": max(known("max_window")),
    }
    return CommitStats(**own, **{f.name: sum(known(f.name)) for f in fields(CommitStats) if f.name not in own})


class HostCounts(Protocol):
    """The scheduler's counts of a sequence."""

    cached_prompt_tokens: int
    preemptions: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished sequence, as statistics read it.

    Attributes:
        total: the slot's totals by name, as Python numbers; a histogram is a list.
        counted: tokens that the totals are over.
        tokens: N_gen, after any cut by a stop string.
        host: the scheduler's counts.
    """

    total: Mapping[str, Any]
    counted: int
    tokens: int
    host: HostCounts

    def mean(self, name: str) -> float | None:
        """A total per token; None without tokens."""
        return self.total[name] / self.counted if self.counted else None

    def negated(self, name: str) -> float | None:
        """A total with the other sign; None without tokens."""
        return 0.0 - self.total[name] if self.counted else None

    def ratio(self, name: str, over: str) -> float | None:
        """One total over another; None where that is 0."""
        return self.total[name] / self.total[over] if self.total[over] else None


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One value of :class:`CommitStats`, and one field of the pipeline's ``stats`` column.

    Attributes:
        name: of the field or property of :class:`CommitStats`, and in the output.
        arrow: Arrow type in the output: int32, int64, float64, list<int32>; None where the output has no such field.
        of: how the value follows; None for properties of :class:`CommitStats`, which follow from its fields.
    """

    name: str
    arrow: str | None
    of: Callable[[Finished], Any] | None = None


STATISTICS: tuple[Statistic, ...] = (
    Statistic(name="generated_tokens", arrow=None, of=lambda s: s.tokens),
    Statistic(name="decode_forwards", arrow="int32", of=lambda s: s.total["forwards"]),
    Statistic(name="rows_forwarded", arrow="int64", of=lambda s: s.total["rows"]),
    Statistic(name="tokens_per_forward", arrow="float64"),
    Statistic(name="prefix_cacheability", arrow="float64"),
    Statistic(name="commit_histogram", arrow="list<int32>", of=lambda s: _without_last_zeros(s.total["emitted"])),
    Statistic(name="mean_entropy", arrow="float64", of=lambda s: s.mean("entropy")),
    Statistic(name="max_entropy", arrow="float64", of=lambda s: s.total["largest_entropy"] if s.counted else None),
    Statistic(name="out_of_order_fills", arrow="int32", of=lambda s: s.total["early"]),
    Statistic(name="mean_logprob", arrow="float64", of=lambda s: _number(s.mean("logprob"))),
    Statistic(name="worst_logprob", arrow=None, of=lambda s: _number(s.negated("largest_surprise"))),
    Statistic(name="draft_agreement", arrow="float64", of=lambda s: s.ratio("mask_accepted", over="tested")),
    Statistic(name="mask_drafts", arrow="int32", of=lambda s: s.total["mask_drafts"]),
    Statistic(name="mask_drafts_accepted", arrow="int32", of=lambda s: s.total["mask_accepted"]),
    Statistic(name="grammar_drafts", arrow="int32", of=lambda s: s.total["grammar_drafts"]),
    Statistic(name="grammar_drafts_accepted", arrow="int32", of=lambda s: s.total["grammar_accepted"]),
    Statistic(name="history_drafts", arrow="int32", of=lambda s: s.total["history_drafts"]),
    Statistic(name="history_drafts_accepted", arrow="int32", of=lambda s: s.total["history_accepted"]),
    Statistic(name="cached_prompt_tokens", arrow="int32", of=lambda s: s.host.cached_prompt_tokens),
    Statistic(name="preemptions", arrow="int32", of=lambda s: s.host.preemptions),
    Statistic(name="window_mean", arrow="float64", of=lambda s: s.ratio("rows", over="forwards") or 0.0),
    Statistic(name="max_window", arrow="int32", of=lambda s: s.total["widest_window"]),
)
"""Every statistic, in the order of the output's fields."""


def _number(value: float | None) -> float | None:
    """None for NaN: strategies without a next-token head report NaN."""
    return value if value is not None and math.isfinite(value) else None


def _without_last_zeros(counts: list[int]) -> tuple[int, ...]:
    last = len(counts)
    while last and not counts[last - 1]:
        last -= 1
    return tuple(counts[:last])


_FIELDS = {s.name: s.of for s in STATISTICS if s.of is not None}


def commit_stats(totals: Totals, slot: int, *, counted: int, tokens: int, host: HostCounts) -> CommitStats:
    """The statistics of the sequence in ``slot``; the other arguments are attributes of :class:`Finished`."""
    done = Finished(total=totals.of(slot), counted=counted, tokens=tokens, host=host)
    return CommitStats(**{name: of(done) for name, of in _FIELDS.items()})
