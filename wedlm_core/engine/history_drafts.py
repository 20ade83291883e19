"""Drafts from history in the windows of a forward: bought where they bring more commits per second than they cost.

A draft from history costs one row; a draft from a mask costs two, its own and that of the mask which proposed it. So
where earlier text goes on, its drafts stand behind the masks' drafts or take their place, and masks behind them are
kept only where they still pay. Rows of all sequences are bought together, the likeliest first, as many as maximise
expected commits per second.

Where drafts from history do not pay, the engine stops asking for a while. Texts of sequences that begin then are not
taken in, but when it asks again: those that run, and the last of those that have ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.history import History, check_bytes
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.kernels.cpu.recall import (
    Worth,
    best_prefixes,
    cut_at_stops,
    fill_windows,
    find_broken,
    open_windows,
    weigh_sources,
)
from wedlm_core.statistics import DraftSource

__all__ = ["LEAST_ACCEPTANCE", "HistoryDrafts", "Suggestions"]

LEAST_ACCEPTANCE = 0.05
"""Probability of acceptance below which no row is worth its bookkeeping."""

_MOST_DRAFTS = 32  # of a sequence in a forward
_KEPT = 0.9  # share of the running means kept per forward
_TRIED = 4  # forwards with proposals, at least, before it is asked whether they pay for the time they take
_TRIED_SHARE = 16  # of a pause's forwards, one for so many: trust grows with what was proposed, bought or not
_AS_ONE = 4  # sequences of a forward that count as one that asks
_AT_FIRST = 32  # more of them at the beginning, when there is no earlier text yet
_PAUSE = 32  # forwards without proposals where they do not; twice as many each time, or four times where
_HOPELESS = 8  # times as much time is spent as saved
_LONGEST_PAUSE = 1024
_MOST_ENDED = 64  # texts that wait to be taken in: the last ones, as taking in takes time for what does not pay


@dataclass(kw_only=True)
class Suggestions:
    """What history proposes for G sequences behind their committed tokens.

    Attributes:
        slots_G: int64.
        token_GD: int32.
        acceptance_GD: float32, probability that a draft and all before it are accepted; 0 behind the last.
        saved_seconds: expected of what was taken of it so far; who takes some adds to it.
    """

    slots_G: IntArray
    token_GD: np.ndarray
    acceptance_GD: np.ndarray
    saved_seconds: float = 0.0


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
        self._ended = deque[tuple[tuple[int, ...], list[int]]](maxlen=_MOST_ENDED)  # what history has yet to get
        self._placed = False  # whether any window has drafts from history
        self._pause, self._next_pause, self._asked = 0, _PAUSE, -_AT_FIRST
        self._value, self._spent, self._has_paused = 0.0, 0.0, False

    # ---- texts ----------------------------------------------------------------------------------------

    @contextmanager
    def _spending(self) -> Iterator[None]:
        """A block whose time is what drafts from history take; not that of a pause, when they can save none."""
        begin = time.perf_counter()
        yield
        if not self._pause:
            self._spent += time.perf_counter() - begin

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
                    with self._spending():
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
            self._history.remember(list(self._ended))
            self._ended.clear()

    def close(self, slot: int, *, keep: bool) -> None:
        """Forget the text of a sequence that ended, or let later ones draw on it."""
        if self._history is None or slot < 0 or not self._table.recalls[slot]:
            return
        if self._open[slot]:
            with self._spending():
                if not self._pause:
                    self._take_in_ended()  # in the order in which they ended
                self._history.close(slot, keep=keep)
            self._opened -= 1
        elif keep:
            self._ended.append((self._history.end_of(self._prompts[slot]), self._table.tokens_of(slot)))
        self._prompts.pop(slot, None)
        self._open[slot] = self._table.recalls[slot] = False
        self._table.source[slot] = DraftSource.MASK  # none of its drafts is there any more

    def append(self, slots_D: IntArray, outcome: StepOutcome, emit_D: IntArray) -> None:
        """Take in what a forward emitted."""
        if self._history is None or not self._opened:
            return
        with self._spending():
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
        # What a pause left to do is done once, so it does not say whether drafts pay.
        self._take_in_ended()
        for slot in slots_G[~self._open[slots_G]].tolist():
            self._take_in(slot)
        self._spent *= _KEPT
        with self._spending():
            proposal = self._history.propose(slots_G, self._budget(slots_G))
            cut_at_stops(proposal.token_SD, proposal.acceptance_SD, proposal.count_S, self._table.stop_ids[slots_G])
        return Suggestions(slots_G=slots_G, token_GD=proposal.token_SD, acceptance_GD=proposal.acceptance_SD)

    def _budget(self, slots_G: IntArray) -> IntArray:
        return np.minimum(2 * self._table.widest[slots_G], self._table.left(slots_G))

    def draft(
        self, found: Suggestions | None, slots_D: IntArray, lives_D: BoolArray, outcome: StepOutcome,
        running: IntArray, spare_tokens: int, state: DeviceState,
    ) -> None:  # fmt: skip
        """Buy drafts for the next windows of the sequences that go on and have no grammar, and write the windows.

        Then decide whether to rest, by all that was taken of ``found``, under grammars as well.

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
        with self._spending():
            own_D = table.recalls[slots_D] & lives_D & ~table.constrained[slots_D]
            if own_D.any():
                self._place(found, slots_D[own_D], own_D, outcome, running, spare_tokens, state)
            self._placed = bool((table.source == DraftSource.HISTORY).any())
        if found is not None:
            self._settle(found.saved_seconds, len(found.slots_G))

    def _place(
        self, found: Suggestions | None, slots_G: IntArray, own_D: BoolArray, outcome: StepOutcome,
        running: IntArray, spare_tokens: int, state: DeviceState,
    ) -> None:  # fmt: skip
        """:meth:`draft` of ``slots_G``, which are ``own_D`` of the forward's sequences."""
        table, broken_G = self._table, np.empty(len(slots_G), dtype=np.bool_)
        any_broken = find_broken(slots_G, outcome.count_D[own_D], outcome.offered_D[own_D], table.source, broken_G)
        least = max(LEAST_ACCEPTANCE, self._planner.row_price)
        if found is not None:
            offer = _of(found, slots_G)
            if bool((offer.acceptance_GD[:, 0] >= least).any()):
                windows = _Windows(state, table, slots_G, broken_G)
                valid_G = outcome.next_valid_D[own_D]
                found.saved_seconds += self._buy(windows, offer, valid_G, running, spare_tokens)
                return
        if any_broken:
            _Windows(state, table, slots_G, broken_G).leave()

    def _settle(self, saved: float, sequences: int) -> None:
        """Pause where drafts from history save fewer seconds than they take; one more forward asked for some.

        Behind a pause a forward of many sequences tells as much as several of a few.
        """
        self._value = self._value * _KEPT + saved
        self._asked += max(1, sequences // _AS_ONE) if self._has_paused else 1
        if self._asked < _TRIED:
            return
        if self._spent > self._value:
            longer = 2 if self._spent < _HOPELESS * self._value else 4
            self._pause, self._next_pause = self._next_pause, min(longer * self._next_pause, _LONGEST_PAUSE)
            self._value = self._spent = 0.0
            self._has_paused = True
        else:
            self._next_pause = _PAUSE
        self._asked = min(0, _TRIED - self._pause // _TRIED_SHARE)

    def _buy(
        self, windows: _Windows, offer: Suggestions, valid_G: BoolArray, running: IntArray, spare_tokens: int
    ) -> float:
        """Choose between the masks' drafts and history's, then buy the likeliest of history's rows; seconds saved."""
        table, planner, price = self._table, self._planner, self._planner.row_price
        slots_G, drafts_G, token_GD = windows.slots_G, windows.drafts_G, offer.token_GD
        worth = _worth(*token_GD.shape)
        weigh_sources(
            slots_G, valid_G, drafts_G, windows.masks_G, planner.by_masks_2SW, offer.acceptance_GD, price, worth
        )
        # History takes the place of masks' drafts where it promises more; else it follows them.
        behind = np.flatnonzero(~worth.replaces)
        if len(behind):
            assert self._history is not None
            slots = slots_G[behind]
            room = np.where(windows.ends_G[behind], 0, np.maximum(windows.most_G[behind] - drafts_G[behind], 0))
            proposal = self._history.propose(slots, room, windows.token_GL[behind], drafts_G[behind])
            cut_at_stops(proposal.token_SD, proposal.acceptance_SD, proposal.count_S, table.stop_ids[slots])
            token_GD = token_GD.copy()
            token_GD[behind] = proposal.token_SD
            best_prefixes(behind, proposal.acceptance_SD, price, worth)
        rows = float(np.add.reduce(table.rows[running]) - drafts_G[worth.replaces].sum())
        commits = len(running) + float(worth.value[behind].sum())
        instead = float((worth.value - price * drafts_G)[worth.replaces].sum())  # of masks' drafts
        bought = planner.buy(worth.acceptance, commits, rows, spare_tokens)
        windows.fill(token_GD, worth, max(bought.threshold, LEAST_ACCEPTANCE), bought.row_price, planner.by_masks_2SW)
        return bought.saved_seconds - planner.seconds_of(max(0.0, instead))


def _worth(windows: int, drafts: int) -> Worth:
    value_G, reached_G, later_G = np.empty((3, windows))
    return Worth(np.empty((windows, drafts)), value_G, reached_G, later_G, np.empty(windows, dtype=np.bool_))


def _of(found: Suggestions, slots_G: IntArray) -> Suggestions:
    """The suggestions for some of the slots, in their order."""
    if len(slots_G) == len(found.slots_G):
        return found
    line_G = np.flatnonzero(np.isin(found.slots_G, slots_G))
    return Suggestions(slots_G=slots_G, token_GD=found.token_GD[line_G], acceptance_GD=found.acceptance_GD[line_G])


class _Windows:
    """The next windows of G sequences while they are changed: masks' drafts, history's, then masks.

    Args:
        state: of the device, which has them.
        table: what it says of them.
        slots_G: of the sequences.
        broken_G: whose drafts are dropped.
    """

    def __init__(self, state: DeviceState, table: SlotTable, slots_G: IntArray, broken_G: BoolArray) -> None:
        self.slots_G, self._state, self._table = slots_G, state, table
        self.token_GL, self._lead_G, self._length_G = state.drafts_of(slots_G)
        self.most_G = np.minimum(2 * table.widest[slots_G], table.left(slots_G))
        self._stop_GK = table.stop_ids[slots_G]
        self.drafts_G, self.masks_G = np.empty((2, len(slots_G)), dtype=np.int64)
        self.ends_G = np.empty(len(slots_G), dtype=np.bool_)
        open_windows(
            self.token_GL, self._lead_G, self._length_G, broken_G, table.masks[slots_G], self.most_G, self._stop_GK,
            self.drafts_G, self.masks_G, self.ends_G,
        )  # fmt: skip

    def fill(
        self, token_GD: np.ndarray, worth: Worth, threshold: float, row_price: float, by_masks_2SW: np.ndarray
    ) -> None:
        """Put drafts of history into them that are at least as likely; to the device, and what the table says."""
        slots_G, table = self.slots_G, self._table
        source_GL = np.empty(self.token_GL.shape, dtype=table.source.dtype)
        fill_windows(
            slots_G, worth, threshold, row_price, token_GD, by_masks_2SW, self.most_G, self._stop_GK,
            self._state.mask_token_id, self.token_GL, self.drafts_G, self.masks_G, self._lead_G, self._length_G,
            source_GL,
        )  # fmt: skip
        table.source[slots_G] = source_GL
        table.rows[slots_G] = 1 + self._length_G
        self._state.set_drafts(slots_G, self.token_GL, self._lead_G, self._length_G)

    def leave(self) -> None:
        """Put no drafts of history into them."""
        none = _worth(len(self.slots_G), 0)
        self.fill(np.zeros((len(self.slots_G), 0), dtype=np.int32), none, np.inf, 0.0, np.zeros((2, 0, 0)))
