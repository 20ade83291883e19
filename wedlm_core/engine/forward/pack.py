"""Packing: the rows of one forward, prefill chunks and window rows of all sequences, as flat tensors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import PackedRows
from wedlm_core.decoding.strategies import Decoding
from wedlm_core.decoding.window import RowLayout, Window, WindowParams, lay_out
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable

__all__ = ["Batch", "Group", "gather_groups", "pack"]


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


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One forward's input: T rows, of which D are decode rows.

    Attributes:
        id_T, position_T: int64 token ids and logical positions.
        kv_slot_T: int64 slot of the KV pool each row writes.
        rows: what attention needs.
        row_D: int64, the forward's row of each decode row.
        flat_D: int64, its place in the groups' flattened layouts (F places in all).
        slot_D: int64, the engine slot of its sequence.
    """

    id_T: Tensor
    position_T: Tensor
    kv_slot_T: Tensor
    rows: PackedRows
    row_D: Tensor
    flat_D: Tensor
    slot_D: Tensor


def gather_groups(
    plan: ForwardPlan, table: SlotTable, state: DeviceState, slots_S: Tensor, context_S: Tensor, rows_D: IntArray
) -> list[Group]:
    """The windows of each run of decoding sequences that share a decoding (the plan sorts them so).

    Args:
        plan: the forward.
        table: groups are read.
        state: where the windows are.
        slots_S: the plan's slots on the device.
        context_S: int64 on the device, tokens whose KV precedes the decode rows of each sequence.
        rows_D: decode rows that the refill at the end of this forward may lead to, at most.
    """
    decoding_count = len(rows_D)
    numbers = table.group[plan.slots_S[:decoding_count]]
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), decoding_count] if decoding_count else []
    groups, base = [], 0
    for start, stop in pairwise(edges):
        width = max(1, int(plan.decode_S[start:stop].max()), int(rows_D[start:stop].max()))
        window = state.windows.gather(slots_S[start:stop], width)
        groups.append(
            Group(
                decoding=state.decodings[int(numbers[start])],
                start=start,
                stop=stop,
                base=base,
                slots_S=slots_S[start:stop],
                context_S=context_S[start:stop],
                params=state.params.gather(slots_S[start:stop]),
                window=window,
                layout=lay_out(window),
            )
        )
        base += groups[-1].layout.id_SR.numel()  # windows may be narrower than the rows asked for: a head is none
    return groups


def pack(plan: ForwardPlan, groups: list[Group], state: DeviceState, page_size: int) -> Batch:
    """Pack a plan: each sequence's prefill rows, then its decode rows (no per-sequence work but per group)."""

    def put(array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(state.device, non_blocking=True)

    counts_S = plan.prefill_S + plan.decode_S
    starts_S = np.cumsum(counts_S) - counts_S
    context_S = plan.cached_S + plan.prefill_S
    seq_T = np.repeat(np.arange(len(counts_S)), counts_S)
    within_T = np.arange(len(seq_T)) - starts_S[seq_T]
    index_T = plan.cached_S[seq_T] + within_T  # KV index; of prefill rows also the logical position
    decode_row = np.flatnonzero(within_T >= plan.prefill_S[seq_T])
    seq_D = seq_T[decode_row]
    first_S = np.zeros(len(counts_S), dtype=np.int64)
    for group in groups:
        width = group.layout.id_SR.shape[1]
        first_S[group.start : group.stop] = group.base + np.arange(group.stop - group.start) * width
    flat = first_S[seq_D] + within_T[decode_row] - plan.prefill_S[seq_D]

    deepest = int((plan.cached_S + counts_S).max() - 1) // page_size + 1
    pages_SP = state.pages_SP[torch.from_numpy(plan.slots_S)][:, :deepest]
    kv_slots = pages_SP[torch.from_numpy(seq_T), torch.from_numpy(index_T // page_size)] * page_size
    position_T = put(index_T).clone()  # from_numpy shares memory, and decode rows are overwritten below
    id_T = state.tokens_SL[put(plan.slots_S[seq_T]), position_T]
    row_D, flat_D = put(decode_row), put(flat)
    if groups:
        position_T[row_D] = put(context_S[seq_D]) + join_tensors([g.layout.offset_SR.flatten() for g in groups])[flat_D]
        id_T[row_D] = join_tensors([g.layout.id_SR.flatten() for g in groups])[flat_D]
    return Batch(
        id_T=id_T,
        position_T=position_T,
        kv_slot_T=(kv_slots + torch.from_numpy(index_T % page_size)).to(state.device),
        rows=PackedRows(
            counts_S=counts_S, cached_S=plan.cached_S, starts_S=starts_S, pages_SP=pages_SP.to(state.device)
        ),
        row_D=row_D,
        flat_D=flat_D,
        slot_D=put(plan.slots_S[seq_D]),
    )
