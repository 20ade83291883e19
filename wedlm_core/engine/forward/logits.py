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
from wedlm_core.decoding.sampling import Choice, SamplingRows, Tops
from wedlm_core.decoding.sampling_gpu import chooser
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.scheduling.slots import IntArray
from wedlm_core.model.draw import Advance, Draw, Drawn, States, StepPicks

AnyPicks = TypeVar("AnyPicks", bound="PickedRows")


@dataclass(frozen=True, kw_only=True)
class PickedRows:
    """R rows that need a token, all int64.

    Attributes:
        row_R: row of the hidden states that are given, where ``asked_N`` is None: of the whole forward, or of its rows
            that are read (:meth:`alone`).
        slot_R: engine slot of the row's sequence.
        position_R: absolute position of the token that is chosen.
        asked_N: those of them that need logits, ascending, as all others may choose one token alone. Then their hidden
            states are given, and no others. None where all need them.
    """

    row_R: Tensor
    slot_R: Tensor
    position_R: Tensor
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
        padding: the rows of a chunk are filled up to a multiple of this.
        mask_token_id: id that suppressing rows never choose.
        vocab_limit: ids from here on are vocabulary padding.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        head: Callable[[Tensor], Tensor],
        chunk_rows: int,
        padding: int,
        mask_token_id: int,
        vocab_limit: int,
    ) -> None:
        self._head, self._padding = head, padding
        self._choose = chooser(device)
        self._chunk = chunk_rows
        self._stated: tuple[AllowedTokens, States] | None = None
        self._limits = {"mask_token_id": mask_token_id, "vocab_limit": vocab_limit}

    def __call__(self, hidden_TD: Tensor, picks: Picks, state: DeviceState, slots_S: IntArray) -> Choice:
        """Choices of the picked rows, spread over the flat layout (zero elsewhere).

        Args:
            hidden_TD: hidden states of the forward.
            picks: rows that need logits.
            state: sampling parameters.
            slots_S: the forward's slots, on the host: they tell which stages of sampling are needed at all.
        """
        flat = Choice.new(torch.zeros, picks.places + 1, state.most_reported(slots_S), hidden_TD.device)
        for part, chosen in self._chunks(hidden_TD, picks, state, slots_S):
            flat.put(picks.flat_R[part], chosen)
        return flat

    def by_row(self, hidden_TD: Tensor, picks: PickedRows, state: DeviceState, slots_S: IntArray) -> Choice:
        """Choices of the picked rows, one of them at least, in their order; arguments as for a call."""
        parts = list(self._chunks(hidden_TD, picks, state, slots_S))
        if len(parts) == 1:
            return parts[0][1]
        joined = Choice.new(torch.empty, picks.row_R.shape[0], state.most_reported(slots_S), hidden_TD.device)
        for part, chosen in parts:
            joined.put(part, chosen)
        return joined

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
            most=state.most_reported(slots_S),
            advance=advance,
            **self._limits,
        )

    def tops(self, draw: Draw, drawn: Drawn) -> Tops:
        """The likely tokens that the decoder reported, where rows report any."""
        tops = Tops(token_RK=drawn.top_token_RK, logprob_RK=drawn.top_logprob_RK)
        return tops if draw.allowed is None else tops.restricted(drawn.line_R[: draw.picks.total])

    def _states_of(self, allowed: AllowedTokens) -> States:
        """Their record for the decoder; for the same ones the same record, whose addresses it knows then."""
        if self._stated is None or self._stated[0] is not allowed:
            given = {f.name: getattr(allowed, f.name) for f in fields(States)}
            self._stated = allowed, States(**given)
        return self._stated[1]

    def _chunks(
        self, hidden_TD: Tensor, picks: PickedRows, state: DeviceState, slots_S: IntArray
    ) -> Iterator[tuple[slice, Choice]]:
        """Chunks of the picks, and the tokens chosen on them."""
        stages = _Stages.of(state, slots_S)
        allowed = None  # asked for when the first logits are there: until then it is computed while the model runs
        for number, (part, own) in enumerate(picks.parts(self._chunk)):
            slot_R, position_R = picks.slot_R[part], picks.position_R[part]
            logits_LV, place_L = self._logits(hidden_TD, picks, part, own)
            allowed = state.allowed_tokens() if number == 0 else allowed
            rows = None if allowed is None else allowed.rows(slot_R, position_R)
            inputs = stages.rows(slot_R, position_R, rows)
            choice = self._choose(logits_LV, inputs if place_L is None else inputs.take(place_L), **self._limits)
            yield part, choice if rows is None else _with_certain(choice, place_L, rows)

    def _logits(self, hidden_TD: Tensor, picks: PickedRows, part: slice, own: slice) -> tuple[Tensor, Tensor | None]:
        """The logits of a part of the picks, and the place in it of each row of them; None where all have some."""
        if picks.asked_N is None:
            rows, place_L = picks.row_R[part], None
            missing = -rows.shape[0] % self._padding
            hidden_LD = hidden_TD.index_select(0, F.pad(rows, (0, missing)) if missing else rows)
        else:
            rows = place_L = picks.asked_N[own] - part.start
            missing = -rows.shape[0] % self._padding
            hidden_LD = F.pad(hidden_TD[own], (0, 0, 0, missing)) if missing else hidden_TD[own]
        return self._head(hidden_LD)[: rows.shape[0]], place_L


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """Which stages of sampling the rows of a forward need.

    Attributes:
        state: sampling parameters.
        sampled, suppressing: as in :class:`SamplingRows`.
        filtered, adjusted: whether any row uses a filter, or an adjustment.
        most: likely tokens that rows report.
    """

    state: DeviceState
    sampled: bool
    suppressing: bool
    filtered: bool
    adjusted: bool
    most: int

    @classmethod
    def of(cls, state: DeviceState, slots_S: IntArray) -> _Stages:
        """Those that the slots of a forward need."""
        sampled, suppressing, *used = np.logical_or.reduce(state.uses[slots_S], axis=0).tolist()
        filtered, adjusted = any(used[: len(FILTERS)]), any(used[len(FILTERS) :])
        return cls(
            state=state, sampled=sampled, suppressing=suppressing, filtered=filtered, adjusted=adjusted,
            most=state.most_reported(slots_S),
        )  # fmt: skip

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
            report_R=state.tops_S.index_select(0, slot_R) if self.most else None,
            most=self.most,
            allowed=allowed,
            sampled=self.sampled,
            suppressing=self.suppressing,
        )


def _with_certain(choice: Choice, place_L: Tensor | None, rows: AllowedRows) -> Choice:
    """Choices of rows, of which some may choose one token alone.

    Args:
        choice: of those that have logits.
        place_L: int64, their places among the rows; None where all have some.
        rows: the tokens that they may choose.
    """
    if place_L is not None:
        most = 0 if choice.tops is None else choice.tops.token_RK.shape[1]
        some, choice = choice, Choice.new(torch.zeros, rows.line_R.shape[0], most, place_L.device)
        choice.token_R.copy_(only(rows.line_R))
        choice.put(place_L, some)
    for nats_R in (choice.entropy_R, choice.logprob_R):  # NaN here means NaN in the logits
        nats_R.masked_fill_(rows.is_certain & ~nats_R.isnan(), 0.0)
    return choice if choice.tops is None else replace(choice, tops=choice.tops.restricted(rows.line_R))
