"""Drafts from history in the windows of a forward: bought where they bring more commits per second than they cost.

A draft from history costs one row; a draft from a mask costs two, its own and that of the mask which proposed it. So
where earlier text goes on, its drafts stand behind the masks' drafts or take their place, and masks behind them are
kept only where they still pay. Rows of all sequences are bought together, the likeliest first, as many as maximise
expected commits per second.

Where drafts from history do not pay, the engine stops asking (:mod:`wedlm_core.engine.history_trials`), and takes no
text in until it asks again: then those of the sequences that run, and the last of those that have ended. In a long
pause it does not even know them until these last ones come: to keep a text takes 3 us, and it may have twenty tokens.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.history import History
from wedlm_core.engine.history_trials import Trials
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.kernels.cpu.recall import cut_at_stops
from wedlm_core.kernels.cpu.recall_step import Columns, Committed, Found, follow, place
from wedlm_core.statistics import DraftSource

__all__ = ["LEAST_ACCEPTANCE", "HistoryDrafts", "Suggestions"]

LEAST_ACCEPTANCE = 0.05
"""Probability of acceptance below which no row is worth its bookkeeping."""

_MOST_DRAFTS = 32  # of a sequence in a forward
_MOST_ENDED = 512  # texts that wait to be taken in, the last ones: a trial without them would not show what they bring
_EARLY = 1.25  # times as many forwards before a trial as that many texts are thought to take, by those before
_MOST_WITHOUT = 64  # new sequences in a row that get no first drafts: what a job's rows begin with may change
_MOST_ENDED_TOKENS = 1 << 18  # of these texts: as Python's numbers they take 10 MB


@dataclass(kw_only=True)
class Suggestions:
    """What history proposes for the D sequences of a forward behind their committed tokens.

    Attributes:
        slots_D: int64.
        token_DP: int32.
        acceptance_DP: float32, probability that a draft and all before it are accepted; 0 behind the last.
        saved_seconds: expected of what was taken of it so far; who takes some adds to it.
    """

    slots_D: IntArray
    token_DP: np.ndarray
    acceptance_DP: np.ndarray
    saved_seconds: float = 0.0


class HistoryDrafts:
    """The history of one engine, and the drafts it gives to windows that the planner sizes.

    Args:
        table: slots; ``recalls`` is written, and ``rows`` and ``source`` where windows get drafts.
        planner: prices rows, and knows how likely masks' drafts are accepted.
        max_window: of any request.
        max_bytes: of the texts that are remembered.
        overlap: whether forwards are launched before the outcome of the last one is known, unless it :attr:`waits`.

    Attributes:
        placed: whether any window has drafts from history, so that :meth:`draft` is due in a pause as well.
        running: gives the sequences that :meth:`open` is for and that have a slot.
    """

    running: Callable[[], Iterable[Sequence]] = staticmethod(tuple)

    def __init__(
        self, table: SlotTable, planner: WindowPlanner, *, max_window: int, max_bytes: int, overlap: bool = False
    ) -> None:
        self._table, self._planner = table, planner
        self._places = 2 * max_window
        self._max_bytes = max_bytes
        self._history: History | None = None
        self._prompts: dict[int, tuple[int, ...]] = {}  # of the slots that it is for
        self._waiting: set[int] = set()  # those of them whose text the history has yet to get
        self._ended = deque[tuple[tuple[int, ...], tuple[int, ...]]]()  # and texts that ended before
        self._ended_tokens, self._most_ended = 0, 0  # of their outputs, and at most
        self.placed = False
        self._nothing = Found(np.zeros((0, 0), dtype=np.int32), np.zeros((0, 0), dtype=np.float32))
        self._trials = Trials(late=overlap)
        self._asks = self._trials.asks
        self._resting = 0  # forwards to come that tell nothing
        self._away = 0  # forwards before these whose texts do not matter either
        self._forwards, self._ends = 0, 0  # seen so far, and texts that ended in them
        self._wait, self._without = 1, 0  # new sequences from one that gets first drafts to the next; to come without
        self._learns_last = False  # the forward behind the last that was asked for any says if these were right
        # Tokens that are output of the last one, its sequences, and its rows of prompts.
        self._forward: tuple[int, int, int] | None = None

    # ---- texts ----------------------------------------------------------------------------------------

    def open(self, sequences: list[Sequence]) -> None:
        """Remember the prompts of new sequences, whose windows are adaptive and verified."""
        if not self._places or not sequences or self._away:
            return
        if self._history is None:
            self._history = History(
                len(self._table.limit), min(_MOST_DRAFTS, self._places), most_ahead=self._places,
                max_bytes=self._max_bytes,
            )  # fmt: skip
            self._most_ended = min(_MOST_ENDED_TOKENS, 1 << self._history.shared_bits)
        for sequence in sequences:
            self._table.recalls[sequence.slot] = True
            self._prompts[sequence.slot] = sequence.request.prompt_token_ids
            self._waiting.add(sequence.slot)

    def _take_in(self) -> None:
        """Let the history have the texts that ended while it rested, and those that run, as long as they are by now."""
        assert self._history is not None
        if self._ended:
            self._history.remember(list(self._ended))
            self._ended.clear()
            self._ended_tokens = 0
        for slot in sorted(self._waiting):
            output = self._table.tokens_of(slot)
            text = np.array((*self._prompts[slot], *output), dtype=np.int64)
            self._history.open(slot, text, output=len(output))
        self._waiting.clear()

    def close(self, slot: int, output: tuple[int, ...] | None = None) -> None:
        """Let later sequences draw on the text of one that ended, whose output this is; None: forget it."""
        if self._history is None or slot < 0 or slot not in self._prompts:
            return
        prompt = self._prompts.pop(slot)
        self._ends += 1
        self._table.recalls[slot] = False
        if slot in self._waiting:
            self._waiting.remove(slot)
            if output is not None:
                self._remember_later(prompt, output)
            if not self.placed:
                return
        else:
            self._history.close(slot, keep=output is not None)
        self._table.source[slot] = DraftSource.MASK  # none of its drafts is there any more

    def _remember_later(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> None:
        """Keep a text until the history takes texts in; of those that wait the last, as many as it would not forget."""
        assert self._history is not None
        # Not in arrays: while history rests, it should cost next to nothing.
        self._ended.append((self._history.end_of(prompt), output))
        self._ended_tokens += len(output)
        while len(self._ended) > _MOST_ENDED or self._ended_tokens > self._most_ended:
            self._ended_tokens -= len(self._ended.popleft()[1])

    # ---- windows --------------------------------------------------------------------------------------

    def wakes(self, emit_D: IntArray, prefill_rows: int) -> bool:
        """Whether :meth:`suggest` is due behind a forward.

        Args:
            emit_D: how much of its commits is output.
            prefill_rows: rows of prompts in it.
        """
        if self._away:
            self._away -= 1
            if not self._away:
                self.open(list(self.running()))
            return False
        if not self._prompts:
            self._forward = None
            return False
        self._forwards += 1
        if self._resting:
            self._resting -= 1
            return False
        self._forward = None
        if not self._learns_last and not self._asks and (far := self._trials.rest()):
            self._resting = far - 1
            self._leave()
            return False
        self._forward, before = (int(np.add.reduce(emit_D)), len(emit_D), prefill_rows), self._asks
        self._asks = self._trials.asks
        self._learns_last = self._learns_last or (before and not self._asks)
        return self._asks or self._learns_last

    def _leave(self) -> None:
        """Forget who runs and what ended, up to forwards whose texts may be taken in, if these are known to be few."""
        if self.placed or self._ends <= _MOST_ENDED:
            return
        before = math.ceil(_EARLY * _MOST_ENDED * self._forwards / self._ends)
        if before >= self._resting:
            return
        self._table.recalls[list(self._prompts)] = False
        self._prompts.clear()
        self._waiting.clear()
        self._ended.clear()
        self._ended_tokens = 0
        self._away, self._resting = self._resting - before, before

    @property
    def waits(self) -> bool:
        """Whether the next forward has to wait for the outcome of the one before it, by which it gets drafts.

        And as long as windows have some, which are cut behind a wrong one: a sequence that had no place in the last
        forward, or was preempted, has them still.
        """
        return bool(self._prompts) and (self._asks or self.placed)

    @property
    def asks(self) -> bool:
        """Whether drafts from history were asked for behind the last forward, and masks have to show what they bring.

        Not in the first forwards: with masks as well, it is learned how often these are right. Else what history is
        compared with would be windows of which nothing is known.
        """
        return self._asks and not self._trials.is_beginning

    def record_step(self, seconds: float) -> None:
        """Take in what the whole step of that forward took."""
        if self._forward is not None and not self._planner.is_visiting:
            self._trials.record(seconds, *self._forward)

    def suggest(
        self, slots_D: IntArray, outcome: StepOutcome, emit_D: IntArray, lives_D: BoolArray
    ) -> Suggestions | None:
        """Take in what a forward emitted, and propose what follows; None where there is no sequence to propose to.

        Args:
            slots_D: the sequences of the forward.
            outcome: of it.
            emit_D: how much of its commits is output.
            lives_D: which of the sequences go on.
        """
        assert self._history is not None
        history, ends = self._history, not self._asks
        if self._waiting and not ends:
            # What the table says of their output has that of the forward.
            emit_D = np.where([slot in self._waiting for slot in slots_D.tolist()], 0, emit_D)
            self._take_in()
        places = len(slots_D), history.most_drafts
        found = Found(np.empty(places, dtype=np.int32), np.empty(places, dtype=np.float32))
        columns, lives_D = self._columns(), np.zeros_like(lives_D) if ends else lives_D
        while True:
            grows, asked = follow(history.memory, columns, slots_D, lives_D, outcome.token_DC, emit_D, found)
            if grows < 0:
                break
            history.grow(int(slots_D[grows]), int(emit_D[grows]))
        if ends:
            self._put_away()
            return None
        if not asked:
            return None
        return Suggestions(slots_D=slots_D, token_DP=found.token, acceptance_DP=found.acceptance)

    def _columns(self) -> Columns:
        table = self._table
        return Columns(
            table.source, table.stop_ids, table.widest, table.limit, table.generated, table.rows, table.masks,
            table.constrained, table.recalls,
        )  # fmt: skip

    def begin(self, sequences: list[Sequence], running: IntArray, spare_tokens: int, state: DeviceState) -> None:
        """Draft the first windows of new sequences that :meth:`open` was called with: many rows begin alike.

        Where that spares less than the time it takes, some of the next ones get none, ever more of them.

        Args:
            sequences: whose slots are set up; no forward is in flight if the last one was to be waited for.
            running: as for :meth:`draft`, and the rest.
            spare_tokens: likewise.
            state: likewise.
        """
        table = self._table
        if self._history is None or not (self._asks and self._trials.asks) or self._planner.prices is None:
            return
        new = [one.slot for one in sequences if table.recalls[one.slot] and not table.constrained[one.slot]]
        if not new:
            return
        if self._without > 0:
            self._without -= len(new)
            return
        self._take_in()
        since = time.perf_counter()
        slots_D, none_D = np.array(new), np.zeros(len(new), dtype=np.int64)
        room_D = np.minimum(2 * table.widest[slots_D], table.limit[slots_D] - table.generated[slots_D])
        own = self._history.propose(slots_D, room_D)
        cut_at_stops(own.token_SD, own.acceptance_SD, own.count_S, table.stop_ids[slots_D])
        found = Suggestions(slots_D=slots_D, token_DP=own.token_SD, acceptance_DP=own.acceptance_SD)
        every_D = np.ones(len(new), dtype=np.bool_)
        forward = Committed(slots_D, every_D, none_D, none_D, ~every_D)
        spared = self.draft(found, forward, running, spare_tokens, state)
        self._wait = 1 if spared > time.perf_counter() - since else min(2 * self._wait, _MOST_WITHOUT)
        self._without = self._wait - 1

    def draft(
        self, found: Suggestions | None, forward: Committed, running: IntArray, spare_tokens: int, state: DeviceState
    ) -> float:
        """Buy drafts for the next windows of the sequences that go on and have no grammar, and write the windows.

        Args:
            found: what history proposes.
            forward: that completed.
            running: slots of all running sequences.
            spare_tokens: KV entries that are free.
            state: what the device keeps of each slot.

        Returns:
            Seconds that they are expected to spare.
        """
        prices, slots_D = self._planner.prices, forward.slots
        if prices is None or self._history is None:
            return 0.0
        if not self.placed and self._table.constrained[slots_D].all():
            self._gained(found, 0.0)  # grammars have placed what was taken
            return 0.0
        windows = state.windows_of(slots_D)
        placed = place(
            forward, self._nothing if found is None else Found(found.token_DP, found.acceptance_DP),
            self._history.memory, self._columns(), windows, self._planner.by_masks_2SW, prices, LEAST_ACCEPTANCE,
            running, spare_tokens, state.mask_token_id,
        )  # fmt: skip
        state.set_windows_of(slots_D, windows)
        self.placed = placed.placed or (self.placed and bool((self._table.source == DraftSource.HISTORY).any()))
        self._gained(found, placed.saved_seconds)
        return placed.saved_seconds

    def _gained(self, found: Suggestions | None, placed_seconds: float) -> None:
        if found is not None:
            self._trials.gained(found.saved_seconds + placed_seconds)

    def _put_away(self) -> None:
        """Take in no more from now on: who runs is taken in anew behind the pause."""
        assert self._history is not None
        self._learns_last = False
        for slot in self._prompts.keys() - self._waiting:
            self._history.close(slot, keep=False)
            self._waiting.add(slot)
