"""Packing and advancing on CPU by kernels.

A step of a small model on CPU is bound by the dispatch of small operations. Packing is one kernel for any strategy:
from the windows themselves where every decoding sequence has a kernel for them (``Decoding.has_cpu_kernel``), which
advances those windows too; else from layouts of the windows. All work on the very tensors of :class:`DeviceState`, so
steps may go either way in any order. Tests hold both equal to the readable packer (``testing/engine/pack_oracle.py``)
and to :class:`wedlm_core.decoding.strategies.verified.VerifiedDecoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import PackedRows
from wedlm_core.decoding.sampling import Choice
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import Group, flatten
from wedlm_core.engine.forward.logits import PickedRows, Picks
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable, StepOutcome
from wedlm_core.kernels.cpu import pack as layout_kernels
from wedlm_core.kernels.cpu import step as kernels

__all__ = ["CpuStep", "PackedInput"]


@dataclass(frozen=True, kw_only=True)
class PackedInput:
    """One forward's input: T rows.

    Attributes:
        id_T, position_T, kv_entry_T: int64 token ids, logical positions and KV slots.
        rows: what attention needs.
    """

    id_T: Tensor
    position_T: Tensor
    kv_entry_T: Tensor
    rows: PackedRows


class CpuStep:
    """The host work of a forward around model and choices.

    Args:
        state: windows, parameters, tokens and page tables, on CPU; its tensors are changed in place, never replaced.
        page_size: tokens per KV page.

    Attributes:
        state: as given.
    """

    def __init__(self, state: DeviceState, page_size: int) -> None:
        self.state, self._page_size, self._mask = state, page_size, state.mask_token_id
        self._has_kernel_G = np.array([decoding.has_cpu_kernel for decoding in state.decodings], dtype=np.bool_)
        self._tokens_SL, self._pages_SP = state.tokens_SL.numpy(), state.pages_SP.numpy()
        window, params = state.windows, state.params
        self._windows = kernels.Windows(
            token=window.token_SL.numpy(),
            filled=window.filled_SL.numpy(),
            early=window.early_SL.numpy(),
            length=window.length_S.numpy(),
            lead=window.lead_S.numpy(),
            head=window.head_S.numpy(),
            emitted=window.emitted_S.numpy(),
            valid=window.valid_S.numpy(),
        )
        self._limits = kernels.Limits(
            window=params.masks_S.numpy(),
            keep_valid=params.keep_valid_S.numpy(),
            keep_stale=params.keep_stale_S.numpy(),
            limit=params.limit_S.numpy(),
            stop=params.stop_SK.numpy(),
        )

    def takes(self, plan: ForwardPlan, table: SlotTable) -> bool:
        """Whether the windows of all decoding sequences have a kernel: for :meth:`pack` and :meth:`advance`."""
        slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
        return bool(self._has_kernel_G[table.group[slots_D]].all())

    def pack(self, plan: ForwardPlan) -> tuple[PackedInput, PickedRows]:
        """Each sequence's prefill rows, then its decode rows, from the windows; the picks are all decode rows."""
        counts_S = plan.prefill_S + plan.decode_S
        rows, picks = _blank_rows(plan, counts_S)
        kernels.pack_rows(_plan(plan), self._windows, self._tokens_SL, self._pages_SP, self._page_size, rows, picks)
        longest = int((plan.cached_S + counts_S).max())
        return self._input(plan, counts_S, longest, rows), PickedRows(
            row_R=torch.from_numpy(picks.row),
            slot_R=torch.from_numpy(picks.slot),
            position_R=torch.from_numpy(picks.position),
            longest=longest,
        )

    def pack_groups(self, plan: ForwardPlan, groups: Sequence[Group]) -> tuple[PackedInput, Picks]:
        """Each sequence's prefill rows, then its decode rows, from the layouts of one group or more."""
        flat, counts_S = flatten(groups), plan.prefill_S + plan.decode_S
        rows, picks = _blank_rows(plan, counts_S)
        place_R = np.empty_like(picks.row)
        layout = layout_kernels.Layout(
            token=flat.id_F.numpy(),
            offset=flat.offset_F.numpy(),
            next=flat.next_F.numpy(),
            own=flat.self_F.numpy(),
            first=flat.first_D.numpy(),
        )
        count = layout_kernels.pack_layouts(
            _plan(plan), layout, self._tokens_SL, self._pages_SP, self._page_size, rows, picks, place_R
        )
        longest = int((plan.cached_S + counts_S).max())
        return self._input(plan, counts_S, longest, rows), Picks(
            row_R=torch.from_numpy(picks.row[:count]),
            slot_R=torch.from_numpy(picks.slot[:count]),
            position_R=torch.from_numpy(picks.position[:count]),
            flat_R=torch.from_numpy(place_R[:count]),
            places=flat.id_F.shape[0],
            longest=longest,
        )

    def _input(self, plan: ForwardPlan, counts_S: IntArray, longest: int, rows: kernels.Rows) -> PackedInput:
        deepest = -(-longest // self._page_size)
        return PackedInput(
            id_T=torch.from_numpy(rows.token),
            position_T=torch.from_numpy(rows.position),
            kv_entry_T=torch.from_numpy(rows.kv_entry),
            rows=PackedRows(
                counts_S=counts_S,
                cached_S=plan.cached_S,
                starts_S=np.cumsum(counts_S) - counts_S,
                pages_SP=torch.from_numpy(self._pages_SP[:, :deepest][plan.slots_S]),
            ),
        )

    def advance(self, plan: ForwardPlan, chosen_R: Choice) -> StepOutcome:
        """Commit, refill and remember, in place.

        Args:
            plan: of the forward; its decode rows are those that were packed.
            chosen_R: choices on the picks.

        Returns:
            The outcome, its places as many as the widest sequence has rows.
        """
        outcome = kernels.blank_outcome(int(np.count_nonzero(plan.decode_S)), int(plan.decode_S.max()))
        choices = kernels.Choices(chosen_R.token_R.numpy(), chosen_R.entropy_R.numpy(), chosen_R.logprob_R.numpy())
        kernels.advance_windows(_plan(plan), choices, self._windows, self._limits, self._mask, self._tokens_SL, outcome)
        return StepOutcome(**outcome._asdict())


def _blank_rows(plan: ForwardPlan, counts_S: IntArray) -> tuple[kernels.Rows, kernels.Picks]:
    """Arrays for a kernel to write, with room for every row and for a pick of every decode row."""
    rows = kernels.Rows(*np.empty((3, int(counts_S.sum())), dtype=np.int64))
    return rows, kernels.Picks(*np.empty((3, int(plan.decode_S.sum())), dtype=np.int64))


def _plan(plan: ForwardPlan) -> kernels.Plan:
    return kernels.Plan(plan.slots_S, plan.cached_S, plan.prefill_S, plan.decode_S)
