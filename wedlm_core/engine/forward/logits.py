"""Logits and choices of the rows that are wanted, in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import AllowedRows, AllowedTokens, only
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.sampling import Choice, SamplingRows
from wedlm_core.decoding.sampling_cpu import most_likely_cpu
from wedlm_core.decoding.sampling_gpu import chooser
from wedlm_core.decoding.tops import Tops, join_tops, most_likely
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.scheduling.slots import IntArray
from wedlm_core.model.draw import Advance, Draw, Drawn, States, StepPicks
from wedlm_core.model.products import RowPadding

__all__ = ["Chooser", "Chosen", "PickedRows", "Picks"]

AnyPicks = TypeVar("AnyPicks", bound="PickedRows")


@dataclass(frozen=True, kw_only=True)
class PickedRows:
    """R rows that need a token, all int64.

    Attributes:
        row_R: row of the hidden states that are given, where ``asked_N`` is None: of the whole forward, or of its rows
            that are read (:meth:`alone`).
        slot_R: engine slot of the row's sequence.
        position_R: absolute position of the token that is chosen.
        topped: picks of sequences that report the most likely tokens at most; None where only the device knows.
        asked_N: those of them that need logits, ascending, as all others may choose one token alone. Then their hidden
            states are given, and no others. None where all need them.
    """

    row_R: Tensor
    slot_R: Tensor
    position_R: Tensor
    topped: int | None = None
    asked_N: Tensor | None = None

    @property
    def read_rows(self) -> Tensor:
        """int64, rows of the forward whose hidden states are needed."""
        return self.row_R if self.asked_N is None else self.row_R.index_select(0, self.asked_N)

    def alone(self) -> Self:
        """The same where hidden states of other rows are not given."""
        return self if self.asked_N is not None else replace(self, row_R=torch.arange(self.row_R.shape[0]))

    def parts(self, rows: int) -> Iterator[tuple[slice, slice]]:
        """In parts of so many that need logits at most: of all, and of those that need them."""
        total, asked = self.row_R.shape[0], None if self.asked_N is None else self.asked_N.tolist()
        if asked is None:
            yield from ((part, part) for part in (slice(start, start + rows) for start in range(0, total, rows)))
            return
        for start in range(0, max(len(asked), 1), rows):
            begin, end = asked[start] if start else 0, asked[start + rows] if start + rows < len(asked) else total
            yield slice(begin, end), slice(start, start + rows)


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
        places: length of the flat layout; a pick that is only padding has its result put after it.
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
    ) -> None:
        self._head, self._padding = head, padding
        self._choose, self._on_cpu = chooser(device), device.type == "cpu"
        self._chunk = chunk_rows
        self._stated: tuple[AllowedTokens, States] | None = None
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

    def asking(self, picks: AnyPicks, state: DeviceState) -> AnyPicks:
        """The same picks, and which of them need logits; for a CPU, before the model runs."""
        allowed = state.allowed_tokens()
        if allowed is None:
            return picks
        asked_R = self._asked(allowed, picks.slot_R, picks.position_R, state)
        return picks if bool(asked_R.all()) else replace(picks, asked_N=asked_R.nonzero().squeeze(-1))

    @staticmethod
    def _asked(allowed: AllowedTokens, slot_R: Tensor, position_R: Tensor, state: DeviceState) -> Tensor:
        """Bool: rows that need logits. Adjustments may forbid the one token that a grammar allows."""
        return ~allowed.rows(slot_R, position_R).is_certain | state.adjusts(slot_R)

    def draw(self, picks: StepPicks, state: DeviceState, slots_S: IntArray, advance: Advance) -> Draw | None:
        """How the decoder itself may choose the picked rows; None where that takes more than it does.

        It keeps all logits.

        Args:
            picks: the rows.
            state: sampling parameters.
            slots_S: the forward's slots.
            advance: work that follows at once.
        """
        if not picks.total:
            return None
        adjusts = state.adjusts_any(slots_S)
        allowed, most = state.allowed_tokens(), picks.total
        if allowed is not None and most > self._chunk:
            _, slot_R, position_R = picks.pick_3R[:, : picks.total]
            most = int(self._asked(allowed, slot_R, position_R, state).count_nonzero())
        if most > self._chunk:
            return None
        return Draw(
            picks=picks,
            columns=state.slot_columns,
            adjustments=state.adjustments_N.numpy() if adjusts else None,
            allowed=None if allowed is None else self._states_of(allowed),
            most_logits=most,
            most=int(state.tops[slots_S].max(initial=0)),
            advance=advance,
            **self._limits,
        )

    def tops(self, draw: Draw, drawn: Drawn) -> Tops | None:
        """The likely tokens that the decoder reported; None where no row reports any."""
        if not draw.most:
            return None
        tops = Tops(token_RK=drawn.top_token_RK, logprob_RK=drawn.top_logprob_RK)
        return tops if draw.allowed is None else tops.beside(drawn.line_R[: draw.picks.total], None)

    def _states_of(self, allowed: AllowedTokens) -> States:
        """Their record for the decoder; for the same ones the same record, whose addresses it knows then."""
        if self._stated is None or self._stated[0] is not allowed:
            given = {f.name: getattr(allowed, f.name) for f in fields(States)}
            self._stated = allowed, States(**given)
        return self._stated[1]

    def _chunks(
        self, hidden_TD: Tensor, picks: PickedRows, state: DeviceState, slots_S: IntArray
    ) -> Iterator[tuple[slice, Chosen]]:
        """Chunks of the picks, and the tokens chosen on them."""
        stages, most = _Stages.of(state, slots_S), int(state.tops[slots_S].max(initial=0))
        allowed = None  # asked for when the first logits are there: until then it is computed beside the model
        for number, (part, own) in enumerate(picks.parts(self._chunk)):
            slot_R, position_R = picks.slot_R[part], picks.position_R[part]
            logits_LV, place_L = self._logits(hidden_TD, picks, part, own)
            allowed = state.allowed_tokens() if number == 0 else allowed
            rows = None if allowed is None else allowed.rows(slot_R, position_R)
            inputs = stages.rows(slot_R, position_R, rows)
            choice = self._choose(logits_LV, inputs if place_L is None else inputs.take(place_L), **self._limits)
            if place_L is not None and rows is not None:
                choice = _among_certain(choice, place_L, rows)
            if rows is not None:
                for nats_R in (choice.entropy_R, choice.logprob_R):  # NaN here means NaN in the logits
                    nats_R.masked_fill_(rows.is_certain & ~nats_R.isnan(), 0.0)
            if not most:
                yield part, Chosen(choice=choice)
                continue
            flag_L = state.tops_S.index_select(0, slot_R if place_L is None else slot_R.index_select(0, place_L)) > 0
            if self._on_cpu:
                tops = most_likely_cpu(logits_LV, flag_L, most)
            else:
                tops = most_likely(logits_LV, flag_L, most, picks.topped)
            yield part, Chosen(choice=choice, tops=tops if rows is None else tops.beside(rows.line_R, place_L))

    def _logits(self, hidden_TD: Tensor, picks: PickedRows, part: slice, own: slice) -> tuple[Tensor, Tensor | None]:
        """The logits of a part of the picks, and the place in it of each row of them; None where all have some."""
        if picks.asked_N is None:
            rows, place_L = picks.row_R[part], None
            missing = self._padding(rows.shape[0]) - rows.shape[0]
            hidden_LD = hidden_TD.index_select(0, F.pad(rows, (0, missing)) if missing else rows)
        else:
            rows = place_L = picks.asked_N[own] - part.start
            missing = self._padding(rows.shape[0]) - rows.shape[0]
            hidden_LD = F.pad(hidden_TD[own], (0, 0, 0, missing)) if missing else hidden_TD[own]
        return self._head(hidden_LD)[: rows.shape[0]], place_L


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """Which stages of sampling the rows of a forward need.

    Attributes:
        state: sampling parameters.
        sampled, suppressing: as in :class:`SamplingRows`.
        filtered, adjusted: whether any row uses a filter, or an adjustment.
    """

    state: DeviceState
    sampled: bool
    suppressing: bool
    filtered: bool
    adjusted: bool

    @classmethod
    def of(cls, state: DeviceState, slots_S: IntArray) -> _Stages:
        """Those that the slots of a forward need."""
        sampled, suppressing, *used = np.logical_or.reduce(state.uses[slots_S], axis=0).tolist()
        filtered, adjusted = any(used[: len(FILTERS)]), any(used[len(FILTERS) :])
        return cls(state=state, sampled=sampled, suppressing=suppressing, filtered=filtered, adjusted=adjusted)

    def rows(self, slot_R: Tensor, position_R: Tensor, allowed: AllowedRows | None) -> SamplingRows:
        """The sampling inputs of rows."""
        state, columns, filters = self.state, self.state.columns, FILTERS if self.filtered else ()
        return SamplingRows(
            temperature_R=columns["temperature"].index_select(0, slot_R),
            seed_R=columns["seed"].index_select(0, slot_R),
            position_R=position_R,
            suppress_R=state.suppress_S.index_select(0, slot_R),
            filters={one.field: columns[one.field].index_select(0, slot_R) for one in filters},
            adjustments_N=state.adjustments_N if self.adjusted else None,
            slot_R=slot_R if self.adjusted else None,
            allowed=allowed,
            sampled=self.sampled,
            suppressing=self.suppressing,
        )


def _among_certain(choice: Choice, place_L: Tensor, rows: AllowedRows) -> Choice:
    """Choices of some rows at their places, among those of rows that may choose one token alone."""
    nothing_R = torch.zeros(rows.line_R.shape[0])
    return Choice(
        token_R=only(rows.line_R).index_copy_(0, place_L, choice.token_R),
        entropy_R=nothing_R.index_copy(0, place_L, choice.entropy_R),
        logprob_R=nothing_R.index_copy(0, place_L, choice.logprob_R),
    )
