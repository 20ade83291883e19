"""Packing and advancing by compiled kernels where every decoding sequence is ``verified`` (CPU).

A step of a small model on CPU is bound by the dispatch of small operations, and its packing, commits and refills are
about 150 of them. Here they are two kernels on the very tensors of :class:`DeviceState`, so steps may go this way and
that way in any order. :mod:`wedlm_core.engine.forward.pack` and :class:`VerifiedDecoding` are the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import PackedRows
from wedlm_core.decoding.sampling import Choice
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.logits import PickedRows
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import BoolArray, SlotTable, StepOutcome
from wedlm_core.kernels.cpu import step as kernels

__all__ = ["CpuStep", "PackedStep"]


@dataclass(frozen=True, kw_only=True)
class PackedStep:
    """One forward's input, as :class:`wedlm_core.engine.forward.pack.Batch` has it, and the picks in row order.

    Attributes:
        id_T, position_T, kv_slot_T: int64 token ids, logical positions and KV slots.
        rows: what attention needs.
        picks: all decode rows.
    """

    id_T: Tensor
    position_T: Tensor
    kv_slot_T: Tensor
    rows: PackedRows
    picks: PickedRows


class CpuStep:
    """The host work of a forward around model and choices.

    Args:
        state: windows, parameters, tokens and page tables, on CPU; its tensors are changed in place, never replaced.
        verified_G: which decoding implementations are ``verified``, by number.
        page_size: tokens per KV page.
    """

    def __init__(self, state: DeviceState, verified_G: BoolArray, page_size: int) -> None:
        self._verified_G, self._page_size, self._mask = verified_G, page_size, state.mask_token_id
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
            window=params.window_S.numpy(),
            keep_valid=params.keep_valid_S.numpy(),
            keep_stale=params.keep_stale_S.numpy(),
            limit=params.limit_S.numpy(),
            stop=params.stop_SK.numpy(),
        )

    def takes(self, plan: ForwardPlan, table: SlotTable) -> bool:
        """Whether all decoding sequences of a plan are ``verified``; only those can go this way."""
        slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
        return bool(self._verified_G[table.group[slots_D]].all())

    def pack(self, plan: ForwardPlan) -> PackedStep:
        """Each sequence's prefill rows, then its decode rows; see :func:`wedlm_core.engine.forward.pack.pack`."""
        counts_S = plan.prefill_S + plan.decode_S
        ends_S = np.cumsum(counts_S)
        deepest = int((plan.cached_S + counts_S).max() - 1) // self._page_size + 1
        rows = kernels.Rows(*np.empty((3, int(ends_S[-1])), dtype=np.int64))
        picks = kernels.Picks(*np.empty((3, int(plan.decode_S.sum())), dtype=np.int64))
        kernels.pack_rows(_plan(plan), self._windows, self._tokens_SL, self._pages_SP, self._page_size, rows, picks)
        return PackedStep(
            id_T=torch.from_numpy(rows.token),
            position_T=torch.from_numpy(rows.position),
            kv_slot_T=torch.from_numpy(rows.kv_slot),
            rows=PackedRows(
                counts_S=counts_S,
                cached_S=plan.cached_S,
                starts_S=ends_S - counts_S,
                pages_SP=torch.from_numpy(self._pages_SP[:, :deepest][plan.slots_S]),
            ),
            picks=PickedRows(
                row_R=torch.from_numpy(picks.row),
                slot_R=torch.from_numpy(picks.slot),
                position_R=torch.from_numpy(picks.position),
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


def _plan(plan: ForwardPlan) -> kernels.Plan:
    return kernels.Plan(plan.slots_S, plan.cached_S, plan.prefill_S, plan.decode_S)
