"""State of each slot on the host, as numpy arrays, so that a step's bookkeeping is vectorised. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from wedlm_core.kernels.cpu.slot_kernels import Observed, cut, keep
from wedlm_core.statistics import (
    NATS,
    BoolArray,
    CommitStats,
    FloatArray,
    HostCounts,
    IntArray,
    StepOutcome,
    TopTokens,
    Totals,
    commit_stats,
)

__all__ = ["BoolArray", "Emission", "FloatArray", "IntArray", "Kept", "SlotTable", "StepOutcome"]


_Columns = TypeVar("_Columns", IntArray, BoolArray)
_ENTROPY = NATS.index("entropy")


@dataclass(frozen=True, kw_only=True)
class Emission:
    """How much of a step's commits is output, and which sequences a stop token or ``max_tokens`` ended."""

    emit_D: IntArray
    stopped_D: BoolArray
    full_D: BoolArray


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Of the decoding sequences of a forward.

    Attributes:
        masks: of the windows.
        tokens: that are output.
        unsound_D: bool, output was chosen from logits that are not all numbers: their entropy is none either.
    """

    masks: int
    tokens: int
    unsound_D: BoolArray


class TopTokenTable:
    """The most likely tokens of slots that report them (``logprobs=k``): a row of places each, none for the others."""

    def __init__(self, slots: int) -> None:
        self._row = np.full(slots, -1, dtype=np.int64)
        self._free: list[int] = []
        self._token = np.zeros((0, 0, 0), dtype=np.int32)
        self._logprob = np.zeros((0, 0, 0), dtype=np.float32)

    def open(self, slot: int, places: int, most: int) -> None:
        """Make room for the ``most`` most likely tokens at so many places."""
        row = self._free.pop() if self._free else int(self._row.max(initial=-1)) + 1
        had = self._token.shape
        # Rows and places double: a job of thousands of requests widens the table a few times.
        needs = (row + 1, places, most)
        size = tuple(has if has >= need else max(need, 2 * has) for has, need in zip(had, needs, strict=True))
        if size != had:
            margins = [(0, after - before) for before, after in zip(had, size, strict=True)]
            self._token, self._logprob = np.pad(self._token, margins), np.pad(self._logprob, margins)
        self._row[slot] = row

    def release(self, slot: int) -> None:
        """Give back the tokens of a slot, if it has any."""
        if self._row[slot] >= 0:
            self._free.append(int(self._row[slot]))
            self._row[slot] = -1

    def append(self, slots_D: IntArray, generated_D: IntArray, tops: TopTokens, emit_D: IntArray) -> None:
        """Keep those of tokens that are output, after ``generated_D`` tokens of earlier forwards."""
        emit_H = emit_D[tops.member_H]
        member, place = np.nonzero(np.arange(tops.token_HCK.shape[1]) < emit_H[:, None])
        of_D = tops.member_H[member]
        there = self._row[slots_D[of_D]], generated_D[of_D] + place
        width = min(tops.token_HCK.shape[2], self._token.shape[2])
        self._token[..., :width][there] = tops.token_HCK[member, place, :width]
        self._logprob[..., :width][there] = tops.logprob_HCK[member, place, :width]

    def of(self, slot: int, tokens: int, most: int) -> tuple[tuple[tuple[int, float], ...], ...]:
        """The ``most`` likeliest tokens at the first ``tokens`` places of a slot, with nats, if they have a chance."""
        row = self._row[slot]
        ids, nats = self._token[row, :tokens, :most].tolist(), self._logprob[row, :tokens, :most].tolist()
        pairs = (zip(*place, strict=True) for place in zip(ids, nats, strict=True))
        return tuple(tuple((token, nat) for token, nat in place if nat > -np.inf) for place in pairs)


class SlotTable:
    """Arrays by engine slot, int64 unless said otherwise.

    Attributes:
        context: tokens that must be in the KV cache before decode rows can run.
        cached: tokens that are in the KV cache.
        capacity: KV entries that the slot's pages hold.
        rows: decode rows of the next forward.
        adaptive: bool, drafting chooses the windows; other slots keep the windows they were set up with.
        masks: masks of the next window.
        keep_valid, keep_stale: drafts that the next window keeps at most, where the drafts' prefix is valid and
            where it is stale.
        widest: masks that any window of the slot may have.
        generated, limit: output tokens so far, and at most.
        group: number of the decoding implementation.
        head: bool, the strategy keeps a head token.
        watched: bool, the request has stop strings.
        constrained: bool, the sequence has a grammar.
        has_history: bool, the sequence gets drafts from history.
        held: bool, a forward of the sequence is in flight and its outcome has to be known before the next one.
        source: int8 ``[slots, places]``, where each draft of the next forward comes from
            (:class:`wedlm_core.statistics.DraftSource`).
        stop_ids: stop tokens ``[slots, K]``, -1 after the last.
        output, logprob: generated tokens (int32) and their log-probabilities (float32 nats), ``[slots, places]``.
        tops: the most likely tokens of slots that report them.
        totals: sums over the forwards of each slot, by name.
    """

    def __init__(self, slots: int, widest: int, stop_ids: int = 16) -> None:
        self._integers = np.zeros((12, slots), dtype=np.int64)
        self._flags = np.zeros((6, slots), dtype=np.bool_)
        self.context, self.cached, self.rows, self.capacity, *others = _lines(self._integers)
        self.widest, self.masks, self.keep_valid, self.keep_stale, *others = others
        self.generated, self.limit, self.group, self._stop_counts = others
        self.adaptive, self.head, self.watched, self.constrained, self.held, self.has_history = _lines(self._flags)
        self.source = np.zeros((slots, widest - 1), dtype=np.int8)
        self.stop_ids = np.full((slots, stop_ids), -1, dtype=np.int64)
        self.output = np.zeros((slots, 0), dtype=np.int32)
        self.logprob = np.zeros((slots, 0), dtype=np.float32)
        self.tops = TopTokenTable(slots)
        self.totals = Totals(slots, widest + 1)

    def clear(self, slot: int) -> None:
        """Reset a slot for a new sequence."""
        self.tops.release(slot)
        self._integers[:, slot], self._flags[:, slot], self.source[slot], self.stop_ids[slot] = 0, False, 0, -1
        self.output[slot], self.logprob[slot] = 0, 0.0
        totals = self.totals
        totals.counts[:, slot], totals.nats[:, slot], totals.emitted[slot] = 0, 0.0, 0

    def make_windows_plain(self) -> None:
        """Give adaptive slots the smallest windows: a head alone, or one mask."""
        plain = np.where(self.head[self.adaptive], 0, 1)
        for column in (self.masks, self.keep_valid, self.keep_stale):
            column[self.adaptive] = plain

    def set_stop_ids(self, slot: int, ids: tuple[int, ...]) -> None:
        """Stop tokens of a slot; the table widens when a request brings more than it has room for."""
        missing = len(ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=-1)
        self.stop_ids[slot, : len(ids)] = ids
        self._stop_counts[slot] = len(ids)

    def set_limit(self, slot: int, tokens: int) -> None:
        """Tokens a slot may generate; the output table widens to hold them."""
        self.limit[slot] = tokens
        missing = tokens - self.output.shape[1]
        if missing > 0:
            self.output = np.pad(self.output, ((0, 0), (0, missing)))
            self.logprob = np.pad(self.logprob, ((0, 0), (0, missing)))

    def left(self, slots_S: IntArray) -> IntArray:
        """Tokens that slots may still generate."""
        return self.limit[slots_S] - self.generated[slots_S]

    def tokens_of(self, slot: int) -> list[int]:
        """Tokens that a slot has generated so far."""
        return self.output[slot, : self.generated[slot]].tolist()

    def emission(self, slots_D: IntArray, outcome: StepOutcome) -> Emission:
        """Cut commits at ``max_tokens`` and after the first stop token (which is kept)."""
        emit_D = np.empty(len(slots_D), dtype=np.int64)
        stopped_D, full_D = np.empty((2, len(slots_D)), dtype=np.bool_)
        cut(
            slots_D, outcome.count_D, outcome.token_DC, self.generated, self.limit, self.stop_ids, self._stop_counts,
            emit_D, stopped_D, full_D,
        )  # fmt: skip
        return Emission(emit_D=emit_D, stopped_D=stopped_D, full_D=full_D)

    def keep(self, slots_D: IntArray, rows_D: IntArray, outcome: StepOutcome, emit_D: IntArray) -> Kept:
        """Account a forward: ``rows_D`` decode rows ran, ``emit_D`` of the commits are output and are kept as such."""
        if outcome.tops is not None:
            self.tops.append(slots_D, self.generated[slots_D], outcome.tops, emit_D)
        totals = self.totals
        observed = Observed(
            outcome.drafts_D, outcome.agreed_D, outcome.offered_D, outcome.token_DC, outcome.entropy_DC,
            outcome.logprob_DC, outcome.early_DC,
        )  # fmt: skip
        masks, tokens = keep(
            slots_D, rows_D, emit_D, observed, self.masks, self.generated, self.source, self.output,
            self.logprob, totals.counts, totals.nats, totals.emitted,
        )  # fmt: skip
        return Kept(masks=masks, tokens=tokens, unsound_D=~np.isfinite(totals.nats[_ENTROPY][slots_D]))

    def stats(self, slot: int, *, tokens: int, host: HostCounts) -> CommitStats:
        """The finished sequence's statistics; ``tokens`` is N_gen after any cut by a stop string."""
        return commit_stats(self.totals, slot, counted=int(self.generated[slot]), tokens=tokens, host=host)


def _lines(columns: _Columns) -> list[_Columns]:
    """The columns of a matrix, each contiguous."""
    return list(columns)
