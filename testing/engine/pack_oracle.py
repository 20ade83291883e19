"""The readable packer: the rows of one forward and those that need logits, which every fast packer has to give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import PackedRows
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import Group
from wedlm_core.engine.forward.logits import Picks
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One forward's input: T rows, D of them decode rows.

    Attributes:
        id_T, position_T: int64 token ids and logical positions.
        kv_entry_T: int64 slot of the KV pool each row writes.
        rows: for attention.
        row_D: int64, the forward's row of each decode row.
        flat_D: int64, its place in the groups' flattened layouts (F places in all).
        slot_D: int64, the engine slot of its sequence.
    """

    id_T: Tensor
    position_T: Tensor
    kv_entry_T: Tensor
    rows: PackedRows
    row_D: Tensor
    flat_D: Tensor
    slot_D: Tensor


def pack(plan: ForwardPlan, groups: Sequence[Group], state: DeviceState, page_size: int) -> Batch:
    """Pack a plan: each sequence's prefill rows, then its decode rows.

    Args:
        plan: decoding sequences first, grouped; its counts are exact.
        groups: windows of the decoding sequences.
        state: tokens and page tables.
        page_size: tokens per KV page.
    """

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
    kv_entries = pages_SP[torch.from_numpy(seq_T), torch.from_numpy(index_T // page_size)] * page_size
    position_T = put(index_T).clone()  # from_numpy shares memory, and decode rows are overwritten below
    id_T = state.tokens_SL[put(plan.slots_S[seq_T]), position_T]
    row_D, flat_D = put(decode_row), put(flat)
    if groups:
        position_T[row_D] = put(context_S[seq_D]) + torch.cat([g.layout.offset_SR.flatten() for g in groups])[flat_D]
        id_T[row_D] = torch.cat([g.layout.id_SR.flatten() for g in groups])[flat_D]
    return Batch(
        id_T=id_T,
        position_T=position_T,
        kv_entry_T=(kv_entries + torch.from_numpy(index_T % page_size)).to(state.device),
        rows=PackedRows(
            counts_S=counts_S, cached_S=plan.cached_S, starts_S=starts_S, pages_SP=pages_SP.to(state.device)
        ),
        row_D=row_D,
        flat_D=flat_D,
        slot_D=put(plan.slots_S[seq_D]),
    )


def pick(groups: Sequence[Group], batch: Batch) -> Picks:
    """The rows of the forward that need logits, in their order."""
    wanted = [g.decoding.wanted(g.window, g.layout) for g in groups]
    next_F = torch.cat([w.next_SR.flatten() for w in wanted])
    self_F = torch.cat([w.self_SR.flatten() for w in wanted])
    picked_R = torch.nonzero((next_F | self_F)[batch.flat_D]).squeeze(1)
    flat_R, row_R = batch.flat_D[picked_R], batch.row_D[picked_R]
    return Picks(
        row_R=row_R,
        flat_R=flat_R,
        slot_R=batch.slot_D[picked_R],
        position_R=batch.position_T[row_R] + next_F[flat_R],
        places=next_F.shape[0],
    )
