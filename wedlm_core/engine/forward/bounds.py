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
class WideRun:
    """Decoding sequences ``start .. stop`` of a plan that share a decoding, and the places of their windows at most."""

    decoding: Decoding
    start: int
    stop: int
    width: int


@dataclass(frozen=True, kw_only=True)
class RowBounds:
    """Bounds of the rows of D decoding sequences, as they were when a forward was launched.

    Attributes:
        parts: the decoding of each run of sequences that share one, their places, and how their windows are refilled.
    """

    parts: Sequence[tuple[Decoding, slice, Refills]]

    @classmethod
    def of(cls, table: SlotTable, slots_D: IntArray, decodings: Sequence[Decoding]) -> RowBounds:
        """From the table, where drafting's windows stand. Plans are sorted by decoding."""
        numbers, parts = table.group[slots_D], []
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(slots_D)] if len(slots_D) else []
        for start, stop in pairwise(edges):
            slots = slots_D[start:stop]
            refills = Refills(
                masks_D=table.masks[slots],
                kept_D=np.maximum(table.keep_valid[slots], table.keep_stale[slots]),
                widest_D=table.widest[slots],
            )
            parts.append((decodings[int(numbers[start])], slice(start, stop), refills))
        return cls(parts=parts)

    def runs(self, rows_D: IntArray, next_D: IntArray) -> tuple[WideRun, ...]:
        """The runs; their windows have ``rows_D`` rows in this forward and ``next_D`` in the next one, at most."""
        return tuple(
            WideRun(
                decoding=decoding,
                start=own.start,
                stop=own.stop,
                width=max(1, int(rows_D[own].max()), int(next_D[own].max())),
            )
            for decoding, own, _ in self.parts
        )

    def next_rows(self, rows_D: IntArray, left_D: IntArray) -> IntArray:
        """int64: decode rows of the next forward at most; 0 where this one surely ends the sequence.

        Args:
            rows_D: decode rows of this forward, or a bound of them.
            left_D: tokens that each sequence may still generate before it, or a bound.
        """
        return self._joined(rows_D, lambda one, own, refills: one.next_rows(refills, rows_D[own], left_D[own]))

    def wanted_rows(self, rows_D: IntArray) -> IntArray:
        """int64: rows of this forward that need logits, at most; ``rows_D`` as for :meth:`next_rows`."""
        return self._joined(rows_D, lambda one, own, refills: one.wanted_rows(refills, rows_D[own]))

    def _joined(self, rows_D: IntArray, part: Callable[[Decoding, slice, Refills], IntArray]) -> IntArray:
        found_D = np.zeros_like(rows_D)
        for decoding, own, refills in self.parts:
            found_D[own] = part(decoding, own, refills)
        return found_D
