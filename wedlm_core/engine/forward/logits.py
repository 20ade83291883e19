"""Logits and choices of the rows that are wanted, in chunks of bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.decoding.adjustments import ADJUSTMENTS, AdjustedRows
from wedlm_core.decoding.allowed_tokens import Refusals
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.parameters import OPTIONAL
from wedlm_core.decoding.sampling import Choice, SamplingRows
from wedlm_core.decoding.sampling_cpu import choose_again_cpu, rank_cpu
from wedlm_core.decoding.sampling_gpu import chooser
from wedlm_core.decoding.tops import Tops, join_tops, most_likely
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.scheduling.slots import IntArray
from wedlm_core.model.draw import Advance, Draw, Drawn, StepPicks
from wedlm_core.model.products import RowPadding

__all__ = ["Chooser", "Chosen", "PickedRows", "Picks"]

_FILTERS = [(place, one) for place, one in enumerate(OPTIONAL) if one in FILTERS]
_ADJUSTMENTS = [(place, one) for place, one in enumerate(OPTIONAL) if one in ADJUSTMENTS]


@dataclass(frozen=True, kw_only=True)
class PickedRows:
    """R rows that need logits, all int64.

    Attributes:
        row_R: row of the forward, or of what is given of it.
        slot_R: engine slot of the row's sequence.
        position_R: absolute position of the token that is chosen.
        special: picks of sequences with filters or adjustments at most; None where only the device knows.
        topped: picks of sequences that report the most likely tokens at most; None likewise.
        longest: tokens of any of the sequences that are known, at most; None where it is not known.
    """

    row_R: Tensor
    slot_R: Tensor
    position_R: Tensor
    special: int | None = None
    topped: int | None = None
    longest: int | None = None

    def alone(self) -> Self:
        """The same where hidden states of other rows are not given."""
        return replace(self, row_R=torch.arange(self.row_R.shape[0], device=self.row_R.device))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Choices, and the most likely tokens of the same rows where any sequence reports them."""

    choice: Choice
    tops: Tops | None = None


@dataclass(frozen=True, kw_only=True)
class Picks(PickedRows):
    """Rows that need logits, and where in the flat layout of all groups their results go.

    Attributes:
        flat_R: place of the result in the flat layout.
        places: length of the flat layout; a pick that is only padding has its result put behind it.
    """

    flat_R: Tensor
    places: int


class Chooser:
    """From hidden states to choices.

    Args:
        device: of the head.
        head: hidden states to logits.
        chunk_rows: rows of logits at once at most.
        padding: of the rows of a chunk.
        mask_token_id: id that suppressing rows never choose.
        vocab_limit: ids from here on are vocabulary padding.
        cpu_kernels: whether the CPU kernel chooses.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        head: Callable[[Tensor], Tensor],
        chunk_rows: int,
        padding: RowPadding,
        mask_token_id: int,
        vocab_limit: int,
        cpu_kernels: bool,
    ) -> None:
        self._head, self._padding = head, padding
        self._choose, self._cpu_kernels = chooser(device, cpu_kernels=cpu_kernels), cpu_kernels
        self._chunk = chunk_rows
        self._limits = {"mask_token_id": mask_token_id, "vocab_limit": vocab_limit}

    def __call__(self, hidden_TD: Tensor, picks: Picks, state: DeviceState, slots_S: IntArray) -> Chosen:
        """Choices of the picked rows, spread over the flat layout (zero elsewhere).

        Args:
            hidden_TD: hidden states of the forward.
            picks: rows that need logits.
            state: sampling parameters.
            slots_S: the forward's slots, on the host: they tell which stages of sampling are needed at all.
        """
        device, places = hidden_TD.device, picks.places + 1
        flat = Choice(
            token_R=torch.zeros(places, dtype=torch.int64, device=device),
            entropy_R=torch.zeros(places, device=device),
            logprob_R=torch.zeros(places, device=device),
        )
        most = int(state.tops[slots_S].max(initial=0))
        tops = Tops.zeros(places, most, device) if most else None
        for part, chosen in self._chunks(hidden_TD, picks, state, slots_S):
            flat_R = picks.flat_R[part]
            for f in fields(Choice):
                getattr(flat, f.name)[flat_R] = getattr(chosen.choice, f.name)
            if tops is not None and chosen.tops is not None:
                tops.put(flat_R, chosen.tops)
        return Chosen(choice=flat, tops=tops)

    def by_row(self, hidden_TD: Tensor, picks: PickedRows, state: DeviceState, slots_S: IntArray) -> Chosen:
        """Choices of the picked rows, one of them at least, in their order; arguments as for a call."""
        parts = [chosen for _, chosen in self._chunks(hidden_TD, picks, state, slots_S)]
        if len(parts) == 1:
            return parts[0]
        joined = {f.name: join_tensors([getattr(one.choice, f.name) for one in parts]) for f in fields(Choice)}
        return Chosen(choice=Choice(**joined), tops=join_tops([one.tops for one in parts if one.tops is not None]))

    def draw(self, picks: StepPicks, state: DeviceState, slots_S: IntArray, advance: Advance | None) -> Draw | None:
        """How the decoder itself may choose the picked rows; None where that takes more than it does.

        It knows no filters and no adjustments, reports no other tokens, and keeps all logits.

        Args:
            picks: the rows.
            state: sampling parameters.
            slots_S: the forward's slots.
            advance: what may follow at once if no choice is held against a grammar afterwards.
        """
        if not self._cpu_kernels or not 0 < picks.total <= self._chunk or state.chooses_by_more(slots_S):
            return None
        allowed, bits_UW, line_R = state.allowed_tokens(), None, None
        if allowed is not None:
            _, slot_R, position_R = picks.pick_3R[:, : picks.total]
            known = allowed.rows(slot_R, position_R)
            bits_UW, line_R = known.bits_UW, known.line_R
            advance = advance if allowed.refusals is None else None
        return Draw(
            picks=picks,
            columns=state.slot_columns,
            bits_UW=bits_UW,
            line_R=line_R,
            advance=advance,
            **self._limits,
        )

    def again(self, drawn: Drawn, picks: StepPicks, state: DeviceState, slots_S: IntArray) -> None:
        """Choose again what grammars refuse of what the decoder chose, in place."""
        allowed = state.allowed_tokens()
        if allowed is None or allowed.refusals is None:
            return
        rows = picks.total
        _, slot_R, position_R = picks.pick_3R[:, :rows]

        @functools.cache
        def inputs() -> SamplingRows:
            sampled, suppressing = np.logical_or.reduce(state.uses[slots_S, :2], axis=0).tolist()
            return SamplingRows(
                temperature_R=state.columns["temperature"].index_select(0, slot_R),
                seed_R=state.columns["seed"].index_select(0, slot_R),
                position_R=position_R,
                suppress_R=state.suppress_S.index_select(0, slot_R),
                sampled=sampled,
                suppressing=suppressing,
            )

        choice = Choice(
            token_R=drawn.token_R[:rows], entropy_R=drawn.entropy_R[:rows], logprob_R=drawn.logprob_R[:rows]
        )
        known = drawn.logit_rows
        logits_RV = drawn.logits_N[: known * drawn.vocab].view(known, drawn.vocab)
        line_R = torch.full((rows,), -1)
        line_R[drawn.logit_pick_R[:known]] = torch.arange(known)
        self._again(choice, logits_RV, line_R, slot_R, position_R, inputs, allowed.refusals, plain=True)

    def _chunks(
        self, hidden_TD: Tensor, picks: PickedRows, state: DeviceState, slots_S: IntArray
    ) -> Iterator[tuple[slice, Chosen]]:
        """Chunks of the picks, and what is chosen on them."""
        sampled, suppressing, *used = np.logical_or.reduce(state.uses[slots_S], axis=0).tolist()
        filters = [one.field for place, one in _FILTERS if used[place]]
        adjustments = [one for place, one in _ADJUSTMENTS if used[place]]
        most = int(state.tops[slots_S].max(initial=0))
        longest = state.tokens_SL.shape[1] if picks.longest is None else picks.longest
        allowed = None  # asked for when the first logits are there: until then it is computed beside the model
        for start in range(0, picks.row_R.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            rows, slots = picks.row_R[part], picks.slot_R[part]
            missing = self._padding(rows.shape[0]) - rows.shape[0]
            padded = F.pad(rows, (0, missing)) if missing else rows
            logits_RV = self._head(hidden_TD.index_select(0, padded))[: rows.shape[0]]
            allowed = state.allowed_tokens() if start == 0 else allowed
            inputs = SamplingRows(
                temperature_R=state.columns["temperature"].index_select(0, slots),
                seed_R=state.columns["seed"].index_select(0, slots),
                position_R=picks.position_R[part],
                suppress_R=state.suppress_S.index_select(0, slots),
                filters={name: state.columns[name].index_select(0, slots) for name in filters},
                adjusted=AdjustedRows(
                    tables=state.adjustments,
                    slot_R=slots,
                    position_R=picks.position_R[part],
                    uses=adjustments,
                    longest=longest,
                )
                if adjustments
                else None,
                allowed=None if allowed is None else allowed.rows(slots, picks.position_R[part]),
                sampled=sampled,
                suppressing=suppressing,
                special_rows=picks.special,
            )
            choice = self._choose(logits_RV, inputs, **self._limits)
            if allowed is not None and allowed.refusals is not None:

                def known(rows: SamplingRows = inputs) -> SamplingRows:
                    return rows

                plain = self._cpu_kernels and not adjustments
                line_R = torch.arange(logits_RV.shape[0], device=logits_RV.device)
                self._again(choice, logits_RV, line_R, slots, inputs.position_R, known, allowed.refusals, plain=plain)
            if inputs.allowed is not None:
                certain_R = inputs.allowed.certain_R
                for nats_R in (choice.entropy_R, choice.logprob_R):
                    nats_R.masked_fill_(certain_R, 0.0)
            if not most:
                yield part, Chosen(choice=choice)
                continue
            flag_R = state.tops_S.index_select(0, slots) > 0
            yield part, Chosen(choice=choice, tops=most_likely(logits_RV, flag_R, most, picks.topped))

    def _again(
        self,
        choice: Choice,
        logits_LV: Tensor,
        line_R: Tensor,
        slot_R: Tensor,
        position_R: Tensor,
        inputs: Callable[[], SamplingRows],
        refusals: Refusals,
        *,
        plain: bool,
    ) -> None:
        """Choose again what grammars refuse of a choice, and what they refuse of that, in place.

        Args:
            choice: of all rows.
            logits_LV: of those of them that may choose among several tokens, after they chose.
            line_R: int64, the line of logits of a row, where it has one.
            slot_R: slots of all rows.
            position_R: positions of their tokens.
            inputs: gives the sampling inputs of the rows; asked if any choice is refused.
            refusals: holds choices against grammars.
            plain: whether the CPU kernel chose, by logits that no adjustment had a say in.
        """

        def ranking(row_N: Tensor, most: int) -> Tensor:
            return rank_cpu(logits_LV, line_R.index_select(0, row_N), inputs().take(row_N), most)

        while (refused := refusals(slot_R, position_R, choice.token_R, ranking if plain else None)) is not None:
            rows, line_N = inputs(), line_R.index_select(0, refused.row_N)
            if plain and not rows.sampled:
                choose_again_cpu(choice, logits_LV, line_N, refused)
                continue
            own = replace(rows.take(refused.row_N), allowed=refused.allowed, special_rows=None)
            other = self._choose(logits_LV.index_select(0, line_N), own, **self._limits)
            for f in fields(Choice):
                getattr(choice, f.name).index_copy_(0, refused.row_N, getattr(other, f.name))
