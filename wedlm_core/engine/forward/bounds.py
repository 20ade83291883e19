"""Bounds on the state after a decode forward, known before it has run.

The host plans forward t + 1 while forward t is in flight, so it plans with bounds: a forward of r decode rows makes
at most r tokens' KV final, and the window it leaves has at most :meth:`RowBounds.next_rows` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wedlm_core.decoding.strategies import Decoding, Refills
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable


@dataclass(frozen=True, kw_only=True)
class DecodingRun:
    """Sequences ``start .. stop`` of a plan, which share a decoding."""

    decoding: Decoding
    start: int
    stop: int


def decoding_runs(table: SlotTable, slots_D: IntArray, decodings: Sequence[Decoding]) -> list[DecodingRun]:
    """The runs of decoding sequences that share a decoding (plans are sorted so).

    Args:
        table: groups are read.
        slots_D: the plan's decoding sequences.
        decodings: the implementations, numbered as in ``SlotTable.group``.
    """
    if not len(slots_D):
        return []
    numbers = table.group[slots_D]
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(slots_D)]
    return [
        DecodingRun(decoding=decodings[int(numbers[start])], start=start, stop=stop) for start, stop in pairwise(edges)
    ]


@dataclass(frozen=True, kw_only=True)
class RowBounds:
    """Bounds of the rows of D decoding sequences, as they were when a forward was launched.

    Attributes:
        parts: each run of sequences and how its windows are refilled.
    """

    parts: Sequence[tuple[DecodingRun, Refills]]

    @classmethod
    def of(cls, table: SlotTable, slots_D: IntArray, decodings: Sequence[Decoding]) -> RowBounds:
        """From the table, where drafting's windows stand.

        Args:
            table: groups and windows are read.
            slots_D: the plan's decoding sequences.
            decodings: the implementations, numbered as in ``SlotTable.group``.
        """
        parts = []
        for run in decoding_runs(table, slots_D, decodings):
            slots = slots_D[run.start : run.stop]
            refills = Refills(
                masks_D=table.masks[slots],
                kept_D=np.maximum(table.keep_valid[slots], table.keep_stale[slots]),
                widest_D=table.widest[slots],
            )
            parts.append((run, refills))
        return cls(parts=parts)

    def next_rows(self, rows_D: IntArray, left_D: IntArray) -> IntArray:
        """int64: decode rows of the next forward at most; 0 where this one surely ends the sequence.

        Args:
            rows_D: decode rows of this forward, or a bound of them.
            left_D: tokens that each sequence may still generate before it, or a bound.
        """
        return self._joined(rows_D, lambda run, refills, own: run.decoding.next_rows(refills, rows_D[own], left_D[own]))

    def wanted_rows(self, rows_D: IntArray) -> IntArray:
        """int64: rows of this forward that need logits, at most; ``rows_D`` as for :meth:`next_rows`."""
        return self._joined(rows_D, lambda run, refills, own: run.decoding.wanted_rows(refills, rows_D[own]))

    def _joined(self, rows_D: IntArray, part: Callable[[DecodingRun, Refills, slice], IntArray]) -> IntArray:
        found_D = np.zeros_like(rows_D)
        for run, refills in self.parts:
            own = slice(run.start, run.stop)
            found_D[own] = part(run, refills, own)
        return found_D
