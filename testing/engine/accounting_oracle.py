"""The host's accounting of a forward in arrays: the readable form of :mod:`wedlm_core.kernels.cpu.slot_kernels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from wedlm_core.engine.scheduling.slots import Emission, SlotTable
from wedlm_core.statistics import BoolArray, DraftSource, FloatArray, IntArray, StepOutcome

_SOURCES = np.array(list(DraftSource), dtype=np.int8)
"""A source is its own index."""


def emission(table: SlotTable, slots_D: IntArray, outcome: StepOutcome) -> Emission:
    """See :meth:`SlotTable.emission`."""
    left_D = table.left(slots_D)
    emit_D = np.minimum(outcome.count_D, left_D)
    hit_DCK = (outcome.token_DC[:, :, None] == table.stop_ids[slots_D, None, :]) & (table.stop_ids[slots_D] >= 0)[
        :, None
    ]
    hit_DC = hit_DCK.any(axis=2) & kept_places(outcome, emit_D)
    stopped_D = hit_DC.any(axis=1)
    emit_D = np.where(stopped_D, hit_DC.argmax(axis=1) + 1, emit_D)
    return Emission(emit_D=emit_D, stopped_D=stopped_D, full_D=emit_D >= left_D)


def keep(table: SlotTable, slots_D: IntArray, rows_D: IntArray, outcome: StepOutcome, emit_D: IntArray) -> None:
    """See :meth:`SlotTable.keep`."""
    row, place = np.nonzero(kept_places(outcome, emit_D))
    there = slots_D[row], table.generated[slots_D[row]] + place
    table.output[there], table.logprob[there] = outcome.token_DC[row, place], outcome.logprob_DC[row, place]
    facts = ForwardFacts.of(outcome, rows_D, emit_D, table.source[slots_D])
    accumulate(table.totals, slots_D, facts)
    table.generated[slots_D] += emit_D


def kept_places(outcome: StepOutcome, emit_D: IntArray) -> BoolArray:
    """Bool ``[D, C]``: the places whose tokens are output; ``emit_D`` (int64) counts them."""
    return np.arange(outcome.token_DC.shape[1]) < emit_D[:, None]


@dataclass(frozen=True, kw_only=True)
class ForwardFacts:
    """One forward of D decoding sequences, as accumulators read it.

    Attributes:
        outcome: of the forward.
        emit_D: int64, committed tokens that are output.
        rows_D: int64, decode rows of the forward.
        kept_DC: bool, places that are output.
        entropy_DC: float64 nats in steps of 2**-24, 0 where nothing is output.
        logprob_DC: float64 nats in steps of 2**-24, 0 where nothing is output.
        source_DC: int8, where the draft at each place came from (:class:`DraftSource`); any value after the drafts.
    """

    outcome: StepOutcome
    emit_D: IntArray
    rows_D: IntArray
    kept_DC: BoolArray
    entropy_DC: np.ndarray
    logprob_DC: np.ndarray
    source_DC: np.ndarray

    @classmethod
    def of(cls, outcome: StepOutcome, rows_D: IntArray, emit_D: IntArray, source_DC: np.ndarray) -> ForwardFacts:
        """Describe a forward; the arguments are attributes."""
        kept_DC = kept_places(outcome, emit_D)
        return cls(
            outcome=outcome,
            source_DC=source_DC,
            emit_D=emit_D,
            rows_D=rows_D,
            kept_DC=kept_DC,
            entropy_DC=_exact(outcome.entropy_DC, kept_DC),
            logprob_DC=_exact(outcome.logprob_DC, kept_DC),
        )

    @cached_property
    def drafts(self) -> IntArray:
        """int64 ``[D, O]``: drafts of each of the O sources that this forward had rows for."""
        return self._by_source(self._verified(self.outcome.offered_D))

    @cached_property
    def tested(self) -> IntArray:
        """int64 ``[D, O]``: those up to the first that was wrong, and within the output."""
        return self._by_source(np.minimum(self.outcome.drafts_D, self.emit_D))

    @cached_property
    def accepted(self) -> IntArray:
        """int64 ``[D, O]``: those that became output."""
        return self._by_source(self._verified(np.minimum(self.outcome.agreed_D, self.emit_D)))

    def _verified(self, count_D: IntArray) -> IntArray:
        """0 where the forward verified no drafts: masks of other strategies are no drafts."""
        return np.where(self.outcome.drafts_D > 0, count_D, 0)

    def _by_source(self, drafts_D: IntArray) -> IntArray:
        width = int(drafts_D.max(initial=0))
        counted_DC = np.arange(width) < drafts_D[:, None]
        return (counted_DC[:, :, None] & (self.source_DC[:, :width, None] == _SOURCES)).sum(axis=1)


def _exact(nats_DC: FloatArray, kept_DC: BoolArray) -> np.ndarray:
    """float64 multiples of 2**-24, 0 where nothing is output.

    Their sums are exact up to 2**29 nats, so a total does not depend on how the forwards grouped the tokens.
    """
    return np.where(kept_DC, np.rint(nats_DC * np.float64(2**24)) * 2.0**-24, 0.0)


@dataclass(frozen=True, kw_only=True)
class Accumulator:
    """One number, or one histogram, that each slot adds up over its forwards.

    Attributes:
        name: of the total.
        of: from a forward to one value per sequence, ``[D]``.
        how: add the value up, keep the largest, or count decode forwards by it.
        dtype: of the total.
    """

    name: str
    of: Callable[[ForwardFacts], np.ndarray]
    how: Literal["sum", "max", "histogram"] = "sum"
    dtype: type[np.generic] = np.int64


ACCUMULATORS: tuple[Accumulator, ...] = (
    Accumulator(name="forwards", of=lambda f: np.ones_like(f.rows_D)),
    Accumulator(name="rows", of=lambda f: f.rows_D),
    Accumulator(name="widest_window", of=lambda f: f.rows_D, how="max"),
    Accumulator(name="emitted", of=lambda f: f.emit_D, how="histogram"),
    Accumulator(name="entropy", of=lambda f: f.entropy_DC.sum(axis=1), dtype=np.float64),
    Accumulator(name="largest_entropy", of=lambda f: f.entropy_DC.max(axis=1), how="max", dtype=np.float64),
    Accumulator(name="logprob", of=lambda f: f.logprob_DC.sum(axis=1), dtype=np.float64),
    Accumulator(name="largest_surprise", of=lambda f: (-f.logprob_DC).max(axis=1), how="max", dtype=np.float64),
    Accumulator(name="early", of=lambda f: (f.outcome.early_DC & f.kept_DC).sum(axis=1)),
    Accumulator(name="tested", of=lambda f: f.tested[:, DraftSource.MASK]),
    Accumulator(name="mask_drafts", of=lambda f: f.drafts[:, DraftSource.MASK]),
    Accumulator(name="mask_accepted", of=lambda f: f.accepted[:, DraftSource.MASK]),
    Accumulator(name="grammar_drafts", of=lambda f: f.drafts[:, DraftSource.GRAMMAR]),
    Accumulator(name="grammar_accepted", of=lambda f: f.accepted[:, DraftSource.GRAMMAR]),
    Accumulator(name="history_drafts", of=lambda f: f.drafts[:, DraftSource.HISTORY]),
    Accumulator(name="history_accepted", of=lambda f: f.accepted[:, DraftSource.HISTORY]),
)
"""Every total of a slot, and how it follows; :func:`wedlm_core.kernels.cpu.slot_kernels.keep` is the fast form."""


def accumulate(totals: Mapping[str, np.ndarray], slots_D: IntArray, forward: ForwardFacts) -> None:
    """Add a forward to the totals of its slots, in place; the slots are different ones."""
    for column in ACCUMULATORS:
        total, value_D = totals[column.name], column.of(forward)
        if column.how == "sum":
            total[slots_D] += value_D
        elif column.how == "max":
            total[slots_D] = np.maximum(total[slots_D], value_D)
        else:
            total[slots_D, value_D] += 1
