"""Packs the rows of one forward on the device, when the host does not know their number.

The host knows a bound of each sequence's decode rows. Their number, and so the place of every row, comes from the
window state on the device. Padding rows follow the real ones. They belong to no sequence, and the slot that they write
their KV to is never read. Tests hold the real rows equal to the readable packer's
(``testing/engine/pack_oracle.py``). If all windows have kernels,
:mod:`wedlm_core.engine.forward.windows_by_kernels` does the same in one launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention import DeviceRows
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import FlatLayout, Group
from wedlm_core.engine.forward.logits import Picks
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The host's bounds of a forward whose numbers of rows only the device knows.

    Attributes:
        total: T, rows of the padded forward: no fewer than the real rows can be.
        max_rows: most rows of one sequence.
        max_kv: most KV entries of one sequence, its own rows included.
        wanted: most rows that need logits.
    """

    total: int
    max_rows: int
    max_kv: int
    wanted: int


@dataclass(frozen=True, kw_only=True)
class DeviceBatch:
    """One forward's input, on the device.

    Attributes:
        id_T, position_T, kv_entry_T: int64 token ids, logical positions and KV slots; padding comes last, with
            slot -1.
        rows: for attention.
    """

    id_T: Tensor
    position_T: Tensor
    kv_entry_T: Tensor
    rows: DeviceRows


def plan_facts(plan: ForwardPlan) -> IntArray:
    """The host's part of a plan, int64 ``[3, S]``: slot, prefill rows, earlier KV entries (-1: on the device only)."""
    return np.stack([plan.slots_S, plan.prefill_S, np.where(plan.prefill_S > 0, plan.cached_S, -1)])


def facts_at_places(facts_3S: IntArray, decoding: int, stop: int, places: int) -> IntArray:
    """Spread the facts over places. A place without a sequence has the slot -1, which kernels skip.

    Args:
        facts_3S: :func:`plan_facts` of a plan whose first ``decoding`` sequences decode.
        decoding: see above.
        stop: the place of the first sequence that does not decode.
        places: number of all places.
    """
    placed_3S = np.repeat(np.array([[-1], [0], [-1]], dtype=np.int64), places, axis=1)
    placed_3S[:, :decoding] = facts_3S[:, :decoding]
    placed_3S[:, stop : stop + facts_3S.shape[1] - decoding] = facts_3S[:, decoding:]
    return placed_3S


def pack_on_device(
    facts_3S: Tensor, layout: FlatLayout | None, state: DeviceState, shape: Shape, page_size: int
) -> tuple[DeviceBatch, Tensor]:
    """Pack prefill rows and decode rows of all sequences, without reading a device tensor on the host.

    Args:
        facts_3S: :func:`plan_facts` on the device.
        layout: rows of the decoding sequences, which come first; None if no sequence decodes.
        state: tokens, contexts and page tables.
        shape: the host's bounds.
        page_size: tokens per KV page.

    Returns:
        The forward's input, and the place of each sequence's first decode row, int64 ``[S]``.
    """
    slots_S, prefill_S, start_S = facts_3S
    start_S = torch.where(start_S < 0, state.context_S[slots_S], start_S)
    counts_S, place_S = prefill_S, torch.zeros_like(prefill_S)
    if layout is not None:
        count_D = layout.count_D
        counts_S = prefill_S + F.pad(count_D, (0, prefill_S.shape[0] - count_D.shape[0]))
        place_S = F.pad(layout.first_D, (0, prefill_S.shape[0] - count_D.shape[0]))
    ends_S = counts_S.cumsum(0)
    row_T = torch.arange(shape.total, device=slots_S.device)
    seq_T = torch.searchsorted(ends_S, row_T, right=True).clamp_(max=slots_S.shape[0] - 1)
    real_T = row_T < ends_S[-1]
    within_T = torch.where(real_T, row_T - (ends_S - counts_S)[seq_T], 0)
    slot_T, index_T = slots_S[seq_T], start_S[seq_T] + within_T
    id_T, position_T = state.tokens_SL[slot_T, index_T], index_T
    if layout is not None:
        decode_row_T = within_T - prefill_S[seq_T]
        decodes_T = (decode_row_T >= 0) & (seq_T < count_D.shape[0]) & real_T
        flat_T = torch.where(decodes_T, place_S[seq_T] + decode_row_T, 0)
        offset_T, layout_id_T = layout.offset_F[flat_T], layout.id_F[flat_T]
        context_T = (start_S + prefill_S)[seq_T]
        position_T = torch.where(decodes_T, context_T + offset_T, position_T)
        id_T = torch.where(decodes_T, layout_id_T, id_T)
    deepest = -(-shape.max_kv // page_size)
    page_T = state.device_pages_SP[slot_T, index_T // page_size].to(torch.int64)
    batch = DeviceBatch(
        id_T=torch.where(real_T, id_T, 0),
        position_T=torch.where(real_T, position_T, 0),
        kv_entry_T=torch.where(real_T, page_T * page_size + index_T % page_size, -1),
        rows=DeviceRows(
            cu_rows_Z=F.pad(ends_S, (1, 0)).to(torch.int32),
            kv_lengths_S=(start_S + counts_S).to(torch.int32),
            pages_SP=state.device_pages_SP[:, :deepest].index_select(0, slots_S),
            max_rows=shape.max_rows,
            max_kv=shape.max_kv,
            total=shape.total,
        ),
    )
    return batch, ends_S - counts_S + prefill_S


def pick_on_device(groups: list[Group], layout: FlatLayout, batch: DeviceBatch, first_S: Tensor, shape: Shape) -> Picks:
    """The rows that need logits, padded to the bound. Padding repeats row 0, and its results are dropped."""
    places = layout.next_F.shape[0]
    row_F = torch.cat([(first_S[g.start : g.stop, None] + _places(g)).flatten() for g in groups])
    slot_F = torch.cat([g.slots_S[:, None].expand(g.layout.id_SR.shape).flatten() for g in groups])
    flat_R = _set_flags(layout.next_F | layout.self_F, shape.wanted, fill=places)
    known_R = flat_R.clamp(max=places - 1)
    row_R = torch.where(flat_R < places, row_F[known_R], 0)
    return Picks(
        row_R=row_R,
        flat_R=flat_R,
        slot_R=slot_F[known_R],
        position_R=batch.position_T[row_R] + layout.next_F[known_R],
        places=places,
    )


def _places(group: Group) -> Tensor:
    return torch.arange(group.layout.id_SR.shape[1], device=group.layout.id_SR.device)


def _set_flags(flag_F: Tensor, bound: int, *, fill: int) -> Tensor:
    """``torch.nonzero`` into a buffer of ``bound`` places, ``fill`` after the last: the host needs no count of them."""
    # Unset flags are written to one place after the buffer, which is cut off.
    place_F = torch.where(flag_F, flag_F.cumsum(dim=0) - 1, bound)
    index_B = torch.full((bound + 1,), fill, dtype=torch.int64, device=flag_F.device)
    index_B.scatter_(0, place_F, torch.arange(flag_F.shape[0], device=flag_F.device))
    return index_B[:bound]
