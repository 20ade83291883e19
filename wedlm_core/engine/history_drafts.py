"""Drafts from history in the windows of a forward: bought where they bring more commits per second than they cost.

A draft from history costs one row; a draft from a mask costs two, its own and that of the mask which proposed it. So
where earlier text goes on, its drafts stand behind the masks' drafts or take their place, and masks behind them are
kept only where they still pay. Rows of all sequences are bought together, the likeliest first, as many as maximise
expected commits per second.

Where drafts from history do not pay, the engine stops asking for a while. Texts of sequences that begin then are not
taken in, but when it asks again, or when they have ended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.history import History, Proposal, check_bytes
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.statistics import DraftSource

__all__ = ["LEAST_ACCEPTANCE", "HistoryDrafts", "Suggestions"]

LEAST_ACCEPTANCE = 0.05
"""Probability of acceptance below which no row is worth its bookkeeping."""

_MOST_DRAFTS = 32  # of a sequence in a forward
_KEPT = 0.9  # share of the running means kept per forward
_TRIED = 4  # forwards with proposals, at least, before it is asked whether they pay for the time they take
_TRIED_SHARE = 16  # of a pause's forwards, one for so many: trust grows with what was proposed, bought or not
_AT_FIRST = 32  # more of them at the beginning, when there is no earlier text yet
_PAUSE = 32  # forwards without proposals where they do not; twice as many each time
_LONGEST_PAUSE = 1024
_MOST_ENDED = 256  # texts that wait to be taken in


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """What history proposes for G sequences behind their committed tokens.

    Attributes:
        slots_G: int64.
        token_GD: int32.
        acceptance_GD: float32, probability that a draft and all before it are accepted; 0 behind the last.
    """

    slots_G: IntArray
    token_GD: np.ndarray
    acceptance_GD: np.ndarray


class HistoryDrafts:
    """The history of one engine, and the drafts it gives to windows that the planner sizes.

    Args:
        table: slots; ``recalls`` is written, and ``rows`` and ``source`` where windows get drafts.
        planner: prices rows, and knows how likely masks' drafts are accepted.
        max_window: of any request.
        max_bytes: of the texts that are remembered.
    """

    def __init__(self, table: SlotTable, planner: WindowPlanner, *, max_window: int, max_bytes: int) -> None:
        self._table, self._planner = table, planner
        self._places = 2 * max_window
        check_bytes(max_bytes, len(table.limit))
        self._max_bytes = max_bytes
        self._history: History | None = None
        self._open = np.zeros(len(table.limit), dtype=np.bool_)  # slots whose texts the history has
        self._opened = 0  # how many there are
        self._prompts: dict[int, tuple[int, ...]] = {}  # of the others
        self._ended: list[tuple[tuple[int, ...], list[int]]] = []  # what history has yet to get
        self._placed = False  # whether any window has drafts from history
        self._pause, self._next_pause, self._asked = 0, _PAUSE, -_AT_FIRST
        self._value, self._spent = 0.0, 0.0

    # ---- texts ----------------------------------------------------------------------------------------

    def open(self, sequences: list[Sequence]) -> None:
        """Remember the prompts of new sequences, whose windows are adaptive and verified."""
        for sequence in sequences:
            if self._places:
                if self._history is None:
                    self._history = History(
                        len(self._table.limit), min(_MOST_DRAFTS, self._places), most_ahead=self._places,
                        max_bytes=self._max_bytes,
                    )  # fmt: skip
                self._table.recalls[sequence.slot] = True
                self._prompts[sequence.slot] = sequence.request.prompt_token_ids
                if not self._pause:
                    self._take_in(sequence.slot)

    def _take_in(self, slot: int) -> None:
        """Let the history have the text of a sequence, as long as it is by now."""
        assert self._history is not None
        output = self._table.tokens_of(slot)
        text = np.array((*self._prompts.pop(slot), *output), dtype=np.int64)
        self._history.open(slot, text, output=len(output))
        self._open[slot] = True
        self._opened += 1

    def _take_in_ended(self) -> None:
        """Let the history have the texts that ended while it rested."""
        if self._ended and self._history is not None:
            self._history.remember(self._ended)
            self._ended.clear()

    def close(self, slot: int, *, keep: bool) -> None:
        """Forget the text of a sequence that ended, or let later ones draw on it."""
        if self._history is None or slot < 0 or not self._table.recalls[slot]:
            return
        if self._open[slot]:
            self._take_in_ended()  # in the order in which they ended
            self._history.close(slot, keep=keep)
            self._opened -= 1
        elif keep:
            self._ended.append((self._history.end_of(self._prompts[slot]), self._table.tokens_of(slot)))
            if len(self._ended) >= _MOST_ENDED:
                self._take_in_ended()
        self._prompts.pop(slot, None)
        self._open[slot] = self._table.recalls[slot] = False

    def append(self, slots_D: IntArray, outcome: StepOutcome, emit_D: IntArray) -> None:
        """Take in what a forward emitted."""
        if self._history is None or not self._opened:
            return
        own_D = self._open[slots_D]
        if own_D.any():
            self._history.append(slots_D[own_D], outcome.token_DC[own_D], emit_D[own_D])

    # ---- windows --------------------------------------------------------------------------------------

    def suggest(self, slots_D: IntArray, lives_D: BoolArray) -> Suggestions | None:
        """What history proposes for the sequences of a forward that go on; None where it is not worth asking."""
        if self._history is None:
            return None
        if self._pause:
            self._pause -= 1
            return None
        own_D = self._table.recalls[slots_D] & lives_D
        if not own_D.any():
            return None
        slots_G = slots_D[own_D]
        self._take_in_ended()
        for slot in slots_G[~self._open[slots_G]].tolist():
            self._take_in(slot)
        begin = time.perf_counter()
        proposal = self._history.propose(slots_G, self._budget(slots_G))
        found = Suggestions(
            slots_G=slots_G, token_GD=proposal.token_SD, acceptance_GD=_within(proposal, self._table.stop_ids[slots_G])
        )
        self._spent = self._spent * _KEPT + time.perf_counter() - begin
        return found

    def _budget(self, slots_G: IntArray) -> IntArray:
        return np.minimum(2 * self._table.widest[slots_G], self._table.left(slots_G))

    def draft(
        self, found: Suggestions | None, slots_D: IntArray, lives_D: BoolArray, outcome: StepOutcome,
        running: IntArray, spare_tokens: int, state: DeviceState,
    ) -> None:  # fmt: skip
        """Buy drafts for the next windows of the sequences that go on and have no grammar, and write the windows.

        Args:
            found: what history proposes.
            slots_D: the sequences of the forward that completed.
            lives_D: which of them go on.
            outcome: of that forward.
            running: slots of all running sequences.
            spare_tokens: KV entries that are free.
            state: what the device keeps of each slot.
        """
        table = self._table
        if found is None and not self._placed:
            return  # nothing to place, and nothing in place
        begin = time.perf_counter()
        own_D = table.recalls[slots_D] & lives_D & ~table.constrained[slots_D]
        if not own_D.any():
            return
        slots_G = slots_D[own_D]
        # Drafts of history that are left behind a wrong one follow what is not there.
        place_L = np.arange(table.source.shape[1])
        gone_GL = (place_L >= outcome.count_D[own_D, None]) & (place_L < outcome.offered_D[own_D, None])
        broken_G = ((table.source[slots_G] == DraftSource.HISTORY) & gone_GL).any(axis=1)
        table.source[slots_G] = DraftSource.MASK
        offer = None if found is None else _of(found, slots_G)
        least = max(LEAST_ACCEPTANCE, self._planner.row_price)
        hopeful = offer is not None and bool((offer.acceptance_GD[:, 0] >= least).any())
        if hopeful or broken_G.any():
            windows = _Windows.of(state, table, slots_G, broken_G)
            if hopeful and offer is not None:
                self._buy(windows, offer, outcome.next_valid_D[own_D], running, spare_tokens)
            windows.write(state, table)
        self._placed = bool((table.source == DraftSource.HISTORY).any())
        self._settle(found is not None, time.perf_counter() - begin)

    def _settle(self, asked: bool, seconds: float) -> None:
        """Pause where drafts from history do not pay for the time that they take."""
        if not asked:
            return
        self._spent += seconds
        self._asked += 1
        if self._asked < _TRIED:
            return
        if self._spent > self._value:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)
        else:
            self._next_pause = _PAUSE
        self._asked = min(0, _TRIED - self._pause // _TRIED_SHARE)

    def _buy(
        self, windows: _Windows, offer: Suggestions, valid_G: BoolArray, running: IntArray, spare_tokens: int
    ) -> None:
        """Choose between the masks' drafts and history's, then buy the likeliest of history's rows."""
        table, planner = self._table, self._planner
        mask_GW, kept_G, price = planner.mask_acceptance(windows.slots_G, valid_G), windows.drafts_G, planner.row_price
        # What the masks will bring in the forward after the next one, if all drafts of the next are accepted.
        next_GW = planner.mask_acceptance(windows.slots_G, np.ones_like(valid_G)).cumsum(axis=1)
        later_G = _first(next_GW, np.minimum(windows.masks_G, next_GW.shape[1]))
        value_G, all_kept_G = _first(mask_GW.cumsum(axis=1), kept_G), np.where(kept_G, _first(mask_GW, kept_G), 1.0)
        token_GD = offer.token_GD.copy()
        best = _best_prefix(offer.acceptance_GD, np.ones(len(kept_G)), later_G, price)
        # History takes the place of masks' drafts where it promises more; else it follows them.
        replaces_G = (kept_G == 0) | (best.value_G > value_G - price * kept_G + all_kept_G * later_G)
        acceptance_GD = best.acceptance_GD
        behind = np.flatnonzero(~replaces_G)
        if len(behind):
            assert self._history is not None
            slots, reached_B = windows.slots_G[behind], all_kept_G[behind]
            room = np.where(windows.ends_G[behind], 0, np.maximum(self._budget(slots) - kept_G[behind], 0))
            proposal = self._history.propose(slots, room, windows.token_GL[behind], kept_G[behind])
            follows_BD = reached_B[:, None] * _within(proposal, table.stop_ids[slots])
            token_GD[behind] = proposal.token_SD
            acceptance_GD[behind] = _best_prefix(follows_BD, reached_B, later_G[behind], price).acceptance_GD
        windows.drafts_G = np.where(replaces_G, 0, kept_G)
        base_rows = float(table.rows[running].sum() - (kept_G - windows.drafts_G).sum())
        base_commits = len(running) + float(np.where(replaces_G, 0.0, value_G).sum())
        bought = planner.buy(acceptance_GD, base_commits, base_rows, spare_tokens)
        count_G = (acceptance_GD >= max(bought.threshold, LEAST_ACCEPTANCE)).sum(axis=1)
        # Where nothing was bought, the masks' drafts stay.
        windows.drafts_G = np.where(count_G == 0, kept_G, windows.drafts_G)
        windows.append(token_GD, count_G)
        all_G = np.where(count_G > 0, _first(acceptance_GD, count_G), 1.0)
        paying_G = planner.paying_masks(windows.slots_G, all_G, bought.row_price)
        windows.masks_G = np.where(count_G > 0, np.minimum(windows.masks_G, paying_G), windows.masks_G)
        self._value = self._value * _KEPT + bought.saved_seconds


def _within(proposal: Proposal, stop_GK: IntArray) -> np.ndarray:
    """Acceptance of a proposal's drafts, 0 behind its last and behind a stop token. float32 ``[G, D]``."""
    place_D = np.arange(proposal.token_SD.shape[1])
    known_GD = place_D < proposal.count_S[:, None]
    stop_GD = (proposal.token_SD[:, :, None] == stop_GK[:, None, :]).any(axis=2) & known_GD
    behind_GD = stop_GD.cumsum(axis=1) - stop_GD > 0
    return np.where(known_GD & ~behind_GD, proposal.acceptance_SD, np.float32(0))


@dataclass(frozen=True, kw_only=True)
class _Prefix:
    """The drafts of each of G sequences that are worth most together.

    Attributes:
        acceptance_GD: of these drafts; 0 behind them.
        value_G: commits that they bring, in this forward and by the masks behind them, less the price of their rows.
    """

    acceptance_GD: np.ndarray
    value_G: np.ndarray


def _best_prefix(acceptance_GD: np.ndarray, reached_G: np.ndarray, later_G: np.ndarray, row_price: float) -> _Prefix:
    """How many drafts to take, as masks behind them propose in vain if one is wrong.

    Args:
        acceptance_GD: probability that a draft and all before it are accepted, 0 behind the last.
        reached_G: probability that all drafts before the first are.
        later_G: commits that the masks behind bring later if all drafts are accepted.
        row_price: commits that a row has to bring.
    """
    all_GD = np.concatenate([reached_G[:, None], acceptance_GD], axis=1)
    gained_GD = np.concatenate([np.zeros((len(reached_G), 1)), np.cumsum(acceptance_GD - row_price, axis=1)], axis=1)
    value_GD = gained_GD + all_GD * later_G[:, None]
    value_GD[:, 1:][acceptance_GD <= 0] = -np.inf
    most_G = value_GD.argmax(axis=1)
    kept_GD = np.arange(acceptance_GD.shape[1]) < most_G[:, None]
    value_G = np.take_along_axis(value_GD, most_G[:, None], axis=1)[:, 0]
    return _Prefix(acceptance_GD=np.where(kept_GD, acceptance_GD, 0), value_G=value_G)


def _first(value_GX: np.ndarray, count_G: IntArray) -> np.ndarray:
    """The value at each sequence's last of ``count_G`` places; 0 where that is none."""
    if not value_GX.shape[1]:
        return np.zeros(len(count_G))
    place_G = np.clip(count_G - 1, 0, value_GX.shape[1] - 1)
    return np.where(count_G > 0, np.take_along_axis(value_GX, place_G[:, None], axis=1)[:, 0], 0.0)


def _of(found: Suggestions, slots_G: IntArray) -> Suggestions:
    """The suggestions for some of the slots, in their order."""
    if len(slots_G) == len(found.slots_G):
        return found
    line_G = np.flatnonzero(np.isin(found.slots_G, slots_G))
    return Suggestions(slots_G=slots_G, token_GD=found.token_GD[line_G], acceptance_GD=found.acceptance_GD[line_G])


@dataclass(kw_only=True)
class _Windows:
    """The next windows of G sequences while they are changed: masks' drafts, history's, then masks."""

    slots_G: IntArray
    token_GL: IntArray
    drafts_G: IntArray
    recalled_G: IntArray
    masks_G: IntArray
    most_G: IntArray
    ends_G: BoolArray

    @classmethod
    def of(cls, state: DeviceState, table: SlotTable, slots_G: IntArray, broken_G: BoolArray) -> _Windows:
        """As the device has them; drafts of ``broken_G`` are dropped."""
        token_GL, lead_G, length_G = state.drafts_of(slots_G)
        most_G = np.minimum(2 * table.widest[slots_G], table.left(slots_G))
        last_G = np.take_along_axis(token_GL, np.maximum(lead_G - 1, 0)[:, None], axis=1)
        ends_G = (last_G == table.stop_ids[slots_G]).any(axis=1) & (lead_G > 0) & ~broken_G
        drafts_G = np.where(broken_G, 0, lead_G)
        masks_G = np.where(broken_G, np.minimum(np.maximum(table.masks[slots_G], 0), most_G), length_G - lead_G)
        return cls(slots_G=slots_G, token_GL=token_GL, drafts_G=drafts_G, recalled_G=np.zeros_like(lead_G),
                   masks_G=masks_G, most_G=most_G, ends_G=ends_G)  # fmt: skip

    def append(self, token_GD: np.ndarray, count_G: IntArray) -> None:
        """Put drafts of history behind those that stay."""
        width = self.token_GL.shape[1]
        count_G = np.minimum(count_G, np.maximum(self.most_G - self.drafts_G, 0))
        place_L = np.arange(width) - self.drafts_G[:, None]
        mine_GL = (place_L >= 0) & (place_L < count_G[:, None])
        source_GL = np.clip(place_L, 0, token_GD.shape[1] - 1)
        self.token_GL = np.where(mine_GL, np.take_along_axis(token_GD, source_GL, axis=1), self.token_GL)
        self.recalled_G = count_G

    def write(self, state: DeviceState, table: SlotTable) -> None:
        """To the device, and what the table says of them."""
        lead_G = self.drafts_G + self.recalled_G
        last_G = np.take_along_axis(self.token_GL, np.maximum(lead_G - 1, 0)[:, None], axis=1)
        ends_G = (last_G == table.stop_ids[self.slots_G]).any(axis=1) & (lead_G > 0)
        room_G = np.maximum(self.most_G - lead_G, 0)
        masks_G = np.where(ends_G, 0, np.minimum(self.masks_G, room_G))
        place_L = np.arange(self.token_GL.shape[1])
        token_GL = np.where(place_L < lead_G[:, None], self.token_GL, state.mask_token_id)
        recalled_GL = (place_L >= self.drafts_G[:, None]) & (place_L < lead_G[:, None])
        table.source[self.slots_G] = np.where(recalled_GL, DraftSource.HISTORY, DraftSource.MASK)
        table.rows[self.slots_G] = 1 + lead_G + masks_G
        state.set_drafts(self.slots_G, token_GL, lead_G, lead_G + masks_G)
