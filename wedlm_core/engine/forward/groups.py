"""The windows of a forward's decoding sequences, group by group: those that share a decoding advance together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.decoding.strategies import Decoding, Wanted
from wedlm_core.decoding.window_state import RowLayout, Window, WindowParams, lay_out
from wedlm_core.engine.forward.bounds import WideRun
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.joining import join_tensors


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
        id_F=join_tensors([g.layout.id_SR.flatten() for g in groups]),
        offset_F=join_tensors([g.layout.offset_SR.flatten() for g in groups]),
        next_F=join_tensors([w.next_SR.flatten() for w in wanted]),
        self_F=join_tensors([w.self_SR.flatten() for w in wanted]),
        first_D=join_tensors([g.first_places() for g in groups]),
        count_D=join_tensors([g.layout.count_S for g in groups]),
    )
