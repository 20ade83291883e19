"""Packing and advancing on CPU by kernels.

A step of a small model on CPU is bound by the dispatch of small operations. Packing is one kernel for any strategy:
from the windows themselves where every decoding sequence has a kernel for them (``Decoding.has_kernels``), which
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
from wedlm_core.errors import IntegrityError
from wedlm_core.kernels.cpu import pack as layout_kernels
from wedlm_core.kernels.cpu import step as kernels
from wedlm_core.model.draw import Advance, StepPicks, StepRows

_OUTCOMES = 32  # shapes of outcomes that are kept: of 512 sequences with wide windows each takes half a megabyte


@dataclass(frozen=True, kw_only=True)
class PackedInput:
    """One forward's input: T rows.

    Attributes:
        id_T, position_T, kv_entry_T: int64 token ids, logical positions and KV slots.
        rows: input of attention.
    """

    id_T: Tensor
    position_T: Tensor
    kv_entry_T: Tensor
    rows: PackedRows


class PackedStep:
    """One forward as a kernel packed it, in memory that the next one is packed in.

    Attributes:
        plan: of the forward.
        rows: input of a decoder that draws tokens itself.
        picks: all decode rows, for the same.
    """

    def __init__(self, plan: ForwardPlan, rows: StepRows, picks: StepPicks) -> None:
        self.plan, self.rows, self.picks = plan, rows, picks

    def input(self) -> PackedInput:
        """The same for any decoder."""
        rows, sequences = self.rows, self.rows.sequences
        id_T, position_T, kv_entry_T = rows.row_3T[:, : rows.total]
        starts_S, counts_S, _ = rows.span_6S[:3, :sequences].numpy()
        return PackedInput(
            id_T=id_T,
            position_T=position_T,
            kv_entry_T=kv_entry_T,
            rows=PackedRows(
                counts_S=counts_S,
                cached_S=self.plan.cached_S,
                starts_S=starts_S,
                pages_SP=rows.page_N[: sequences * rows.page_columns].view(sequences, rows.page_columns),
            ),
        )

    def picked(self) -> PickedRows:
        """The picks for any chooser."""
        row_R, slot_R, position_R = self.picks.pick_3R[:, : self.picks.total]
        return PickedRows(row_R=row_R, slot_R=slot_R, position_R=position_R)


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
        self._has_kernel_G = np.array([decoding.has_kernels for decoding in state.decodings], dtype=np.bool_)
        self._tokens_SL, self._pages_SP = state.tokens_SL.numpy(), state.pages_SP.numpy()
        self._record = _record_of(state)
        self._state_address = int(self._record.ctypes.data)
        self._row_3T, self._pick_3R, self._span_6S = (torch.empty(n, 0, dtype=torch.int64) for n in (3, 3, 6))
        self._outcomes: dict[tuple[int, int], KeptOutcome] = {}
        self._page_N = torch.empty(0, dtype=torch.int64)
        self._arrays = [one.numpy() for one in (self._row_3T, self._pick_3R, self._span_6S, self._page_N)]

    def takes(self, plan: ForwardPlan, table: SlotTable) -> bool:
        """Whether the windows of all decoding sequences have a kernel: for :meth:`pack` and :meth:`advance`."""
        slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
        return bool(self._has_kernel_G[table.group[slots_D]].all())

    def pack(self, plan: ForwardPlan) -> PackedStep:
        """Each sequence's prefill rows, then its decode rows, from the windows; the picks are all decode rows."""
        sequences = len(plan.slots_S)
        rows, picks, columns, longest = kernels.pack_rows(_plan(plan), self._record, self._page_size, *self._arrays)
        if self._grow(rows, picks, sequences, sequences * columns):
            kernels.pack_rows(_plan(plan), self._record, self._page_size, *self._arrays)
        return PackedStep(
            plan,
            StepRows(self._row_3T, rows, self._span_6S, sequences, self._page_N, columns, longest),
            StepPicks(self._pick_3R, picks),
        )

    def _grow(self, rows: int, picks: int, sequences: int, pages: int) -> bool:
        """Make room for a forward; True if there was too little."""
        before = self._row_3T, self._pick_3R, self._span_6S, self._page_N
        if all(one.shape[-1] >= least for one, least in zip(before, (rows, picks, sequences, pages), strict=True)):
            return False
        self._row_3T, self._pick_3R, self._span_6S, self._page_N = (
            torch.empty(*one.shape[:-1], max(one.shape[-1], 2 * least), dtype=torch.int64)
            for one, least in zip(before, (rows, picks, sequences, pages), strict=True)
        )
        self._arrays = [one.numpy() for one in (self._row_3T, self._pick_3R, self._span_6S, self._page_N)]
        return True

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

    def advance(self, plan: ForwardPlan, choices: kernels.Choices) -> StepOutcome:
        """Commit, refill and remember, in place.

        Args:
            plan: of the forward; its decode rows are those that were packed.
            choices: on the picks.

        Returns:
            The outcome, its places as many as the widest sequence has rows; valid until the next call.
        """
        kept = self._kept(plan)
        kernels.advance_windows(_plan(plan), choices, self._record, self._mask, kept.arrays)
        return kept.outcome

    def advancing(self, plan: ForwardPlan) -> tuple[Advance, StepOutcome]:
        """The record for a decoder that does the same after its choice of tokens, and the outcome, written then."""
        kept = self._kept(plan)
        decoding, places = kept.arrays.token.shape
        return Advance(decoding, places, self._state_address, self._mask, kept.addresses), kept.outcome

    def _kept(self, plan: ForwardPlan) -> KeptOutcome:
        """Room for the outcome of a forward, written to again and again."""
        key = int(np.count_nonzero(plan.decode_S)), int(np.maximum.reduce(plan.decode_S))
        kept = self._outcomes.get(key)
        if kept is None:
            if len(self._outcomes) >= _OUTCOMES:
                self._outcomes.clear()
            kept = self._outcomes[key] = KeptOutcome(*key)
        return kept


class KeptOutcome:
    """Room for the outcome of a forward.

    Attributes:
        arrays: as kernels write it.
        addresses: of these.
        outcome: the same by column.
    """

    def __init__(self, decoding: int, places: int) -> None:
        self._tensors = (
            torch.zeros(6, decoding, dtype=torch.int64), torch.zeros(2, decoding, dtype=torch.bool),
            torch.zeros(decoding, places, dtype=torch.int64), torch.zeros(2, decoding, places),
            torch.zeros(decoding, places, dtype=torch.bool),
        )  # fmt: skip
        self.arrays = kernels.Outcome(*(one.numpy() for one in self._tensors))
        counts, flags, token, nats, early = (one.data_ptr() for one in self._tensors)
        self.addresses = counts, flags, token, nats, early
        self.outcome = StepOutcome(**kernels.columns_of(self.arrays))


def choices_of(choice: Choice) -> kernels.Choices:
    """Choices as :meth:`CpuStep.advance` takes them."""
    return kernels.Choices(choice.token_R.numpy(), choice.entropy_R.numpy(), choice.logprob_R.numpy())


def _record_of(state: DeviceState) -> np.ndarray:
    """Sizes and addresses of the state's tensors."""
    window, params, record = state.windows, state.params, np.zeros(1, dtype=kernels.STATE)
    (slots, places), stops = window.token_SL.shape, params.stop_SK.shape[1]
    sizes = {"slots": slots, "places": places, "stops": stops, "positions": state.tokens_SL.shape[1],
             "page_columns": state.pages_SP.shape[1]}  # fmt: skip
    tensors = {
        "token": window.token_SL, "filled": window.filled_SL, "early": window.early_SL, "length": window.length_S,
        "lead": window.lead_S, "head": window.head_S, "emitted": window.emitted_S, "valid": window.valid_S,
        "masks": params.masks_S, "keep_valid": params.keep_valid_S, "keep_stale": params.keep_stale_S,
        "limit": params.limit_S, "stop": params.stop_SK, "tokens": state.tokens_SL, "pages": state.pages_SP,
    }  # fmt: skip
    for name, size in sizes.items():
        record[name] = size
    for name, tensor in tensors.items():
        if not tensor.is_contiguous() or tensor.dtype not in (torch.int64, torch.bool):
            raise IntegrityError(f"{name} of slots is {tensor.dtype} and has to be int64 or bool, in one piece")
        record[name] = tensor.data_ptr()
    return record


def _blank_rows(plan: ForwardPlan, counts_S: IntArray) -> tuple[kernels.Rows, kernels.Picks]:
    """Arrays for a kernel to write, with room for every row and for a pick of every decode row."""
    rows = kernels.Rows(*np.empty((3, int(counts_S.sum())), dtype=np.int64))
    return rows, kernels.Picks(*np.empty((3, int(plan.decode_S.sum())), dtype=np.int64))


def _plan(plan: ForwardPlan) -> kernels.Plan:
    return kernels.Plan(plan.slots_S, plan.cached_S, plan.prefill_S, plan.decode_S)
