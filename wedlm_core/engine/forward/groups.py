"""The decoding sequences of a forward, group by group: those that share a decoding advance together.

The host may plan forward t + 1 while forward t is in flight, so it plans with bounds: a forward of r decode rows makes
at most r tokens' KV final, and the window it leaves has at most :meth:`RowBounds.next_rows` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.strategies import Decoding, Refills, Wanted
from wedlm_core.decoding.window_state import RowLayout, Window, WindowParams, lay_out
from wedlm_core.engine.forward.device_state import DeviceState
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


@dataclass(frozen=True, kw_only=True)
class Group:
    """Sequences ``start .. stop`` of a plan, which share a decoding.

    Their layouts, flattened ``[S, R]``, stand one group after the other; ``base`` is where this one begins.
    ``context_S`` counts the tokens whose KV precedes their decode rows.
    """

    decoding: Decoding
    start: int
    stop: int
    base: int
    slots_S: Tensor
    context_S: Tensor
    params: WindowParams
    window: Window
    layout: RowLayout

    def first_places(self) -> Tensor:
        """int64 ``[S]``: where each sequence's rows begin in the flat layout of all groups."""
        sequences, places = self.layout.id_SR.shape
        return self.base + places * torch.arange(sequences, device=self.layout.id_SR.device)


def gather_groups(runs: Sequence[WideRun], state: DeviceState, slots_S: Tensor, context_S: Tensor) -> list[Group]:
    """The windows of each run, cut to its width.

    Args:
        runs: of the forward's decoding sequences.
        state: where the windows are.
        slots_S: the plan's slots on the device.
        context_S: int64 on the device, tokens whose KV precedes the decode rows of each sequence.
    """
    groups, base = [], 0
    for run in runs:
        own = slice(run.start, run.stop)
        window = state.windows.gather(slots_S[own], run.width)
        groups.append(
            Group(
                decoding=run.decoding,
                start=run.start,
                stop=run.stop,
                base=base,
                slots_S=slots_S[own],
                context_S=context_S[own],
                params=state.params.gather(slots_S[own]),
                window=window,
                layout=lay_out(window),
            )
        )
        base += groups[-1].layout.id_SR.numel()  # windows may be narrower than the rows asked for: a head is none
    return groups


@dataclass(frozen=True, kw_only=True)
class FlatLayout:
    """The layouts of all groups, flattened one after the other: F places.

    Attributes:
        id_F, offset_F: int64 token ids, and logical positions minus the context.
        next_F, self_F: bool, rows that need logits (:class:`wedlm_core.decoding.strategies.Wanted`).
        first_D: int64, place of each decoding sequence's first row.
        count_D: int64, its rows.
    """

    id_F: Tensor
    offset_F: Tensor
    next_F: Tensor
    self_F: Tensor
    first_D: Tensor
    count_D: Tensor


def flatten(groups: Sequence[Group]) -> FlatLayout:
    """Join the layouts of one group or more, and say which rows need logits."""
    wanted: list[Wanted] = [g.decoding.wanted(g.window, g.layout) for g in groups]
    return FlatLayout(
        id_F=torch.cat([g.layout.id_SR.flatten() for g in groups]),
        offset_F=torch.cat([g.layout.offset_SR.flatten() for g in groups]),
        next_F=torch.cat([w.next_SR.flatten() for w in wanted]),
        self_F=torch.cat([w.self_SR.flatten() for w in wanted]),
        first_D=torch.cat([g.first_places() for g in groups]),
        count_D=torch.cat([g.layout.count_S for g in groups]),
    )
