"""Windows with drafts from history: texts go in, drafts come out and are written into the slots. Torch-free.

While no arm with history is on, texts are only remembered: those of the sequences that run, and the last of those that
ended. The history reads them when such an arm begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wedlm_core.engine.drafting.constants import DraftingConstants
from wedlm_core.engine.drafting.history import History
from wedlm_core.engine.drafting.report import StepReport
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable
from wedlm_core.kernels.cpu.draft_windows import Columns, Windows, count_worth, write_drafts
from wedlm_core.kernels.cpu.history import follow
from wedlm_core.statistics import DraftSource

__all__ = ["HistoryWindows", "Suggestions", "WindowState"]

_MOST_DRAFTS = 32  # of a sequence in a forward
_MOST_ENDED = 512  # texts that wait for the history: the last ones


class WindowState(Protocol):
    """The windows on the device, as :class:`wedlm_core.engine.forward.device_state.DeviceState` has them."""

    mask_token_id: int

    def windows_of(self, slots_D: IntArray) -> Windows:
        """Windows of these slots, to be changed."""
        ...

    def set_windows_of(self, slots_D: IntArray, windows: Windows) -> None:
        """Bring changed windows to the device."""
        ...


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """Drafts from history for the D sequences of a forward.

    Attributes:
        token_DP: int32.
        take_D: int64, how many of them a sequence should take; 0 where the proposals of masks are better.
    """

    token_DP: np.ndarray
    take_D: IntArray


class HistoryWindows:
    """Keeps the texts of sequences, and writes drafts that follow from them into windows.

    Args:
        table: slots; ``recalls`` is written, and ``rows`` and ``source`` where windows get drafts.
        max_window: of any request.
        max_bytes: of the history.
        constants: of drafting.

    Attributes:
        is_on: drafts are wanted.
        placed: some window has drafts from history.
    """

    def __init__(self, table: SlotTable, max_window: int, max_bytes: int, constants: DraftingConstants) -> None:
        self._table, self._places, self._constants = table, 2 * max_window, constants
        self._max_bytes, self._history = max_bytes, _none()
        self._prompts: dict[int, tuple[int, ...]] = {}  # of slots that get drafts
        self._waiting = set[int]()  # slots whose text the history does not have
        self._ended = deque[tuple[tuple[int, ...], tuple[int, ...]]](maxlen=_MOST_ENDED)
        self._reads = False  # the history has the texts of the slots that do not wait
        self.is_on, self.placed = False, False

    def open(self, prompts: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        """Remember prompts of new sequences, by slot."""
        for slot, prompt in prompts:
            self._table.recalls[slot] = True
            self._prompts[slot] = prompt
            self._waiting.add(slot)

    def close(self, slot: int, output: tuple[int, ...] | None) -> None:
        """Keep the text of a sequence that ended for others; an output of None is forgotten."""
        prompt = self._prompts.pop(slot, None)
        if prompt is None:
            return
        self._table.recalls[slot], self._table.source[slot] = False, DraftSource.MASK
        if slot not in self._waiting:
            assert self._history is not None
            self._history.close(slot, keep=output is not None)
        elif output:
            self._ended.append((prompt[-self._constants.orders[-1] :], output))
        self._waiting.discard(slot)

    @property
    def waits(self) -> bool:
        """Whether the next forward has to wait for the outcome of the one before, which drafts follow."""
        return bool(self._prompts) and (self.is_on or self.placed)

    def suggest(
        self, report: StepReport, by_masks_2SW: np.ndarray, price: float, state: WindowState
    ) -> Suggestions | None:
        """Read what a forward committed, and find drafts for the sequences that go on; None if there are none.

        Args:
            report: of the forward.
            by_masks_2SW: float64, probability that drafts of masks up to each offset are accepted, by slot.
            price: commits that a row has to gain.
            state: windows.
        """
        if not self._prompts or not (self.is_on or self._reads):
            return None
        slots_D, wanted = report.slots_D, self.is_on and report.can_draft
        fresh = self._take_in() if self.is_on else set[int]()
        history = self._history
        assert history is not None
        emit_D = report.emit_D  # the table has the tokens of this forward already, and so have texts just read
        if fresh:
            emit_D = np.where([slot in fresh for slot in slots_D.tolist()], 0, emit_D)
        lives_D = ~report.ended_D if wanted else np.zeros_like(report.ended_D)
        shape = len(slots_D), history.most_drafts
        token_DP, acceptance_DP = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.float32)
        columns = self._columns()
        while True:
            grows = follow(
                history.memory, columns, slots_D, lives_D, report.outcome.token_DC, emit_D, token_DP, acceptance_DP
            )
            if grows < 0:
                break
            history.grow(int(slots_D[grows]), int(emit_D[grows]))
        if not self.is_on:
            self._put_away()
        if not wanted:
            return None
        windows, take_D = state.windows_of(slots_D), np.empty(len(slots_D), dtype=np.int64)
        count_worth(
            slots_D, lives_D, acceptance_DP, report.outcome.next_valid_D, windows.lead[windows.place], by_masks_2SW,
            max(price, self._constants.least_acceptance), self._table.recalls, take_D,
        )  # fmt: skip
        return Suggestions(token_DP=token_DP, take_D=take_D)

    def write(self, report: StepReport, found: Suggestions | None, state: WindowState) -> None:
        """Write the next windows of sequences without a grammar."""
        if not report.can_draft or not (self.placed or (found is not None and found.take_D.any())):
            return
        slots_D, outcome = report.slots_D, report.outcome
        if found is None:
            found = Suggestions(
                token_DP=np.zeros((len(slots_D), 0), np.int32), take_D=np.zeros(len(slots_D), dtype=np.int64)
            )
        windows = state.windows_of(slots_D)
        _, wrote = write_drafts(
            slots_D, ~report.ended_D, outcome.count_D, outcome.offered_D, found.token_DP, found.take_D,
            self._columns(), windows, state.mask_token_id,
        )  # fmt: skip
        if wrote:
            state.set_windows_of(slots_D, windows)
        self.placed = bool((self._table.source == DraftSource.HISTORY).any())

    def _columns(self) -> Columns:
        table = self._table
        return Columns(*(getattr(table, name) for name in Columns._fields))

    def _take_in(self) -> set[int]:
        """Let the history read the texts that wait; the slots among them."""
        if self._history is None:
            drafts = min(_MOST_DRAFTS, self._places)
            self._history = History(
                len(self._table.limit), drafts, max_bytes=self._max_bytes, constants=self._constants
            )
        self._reads = True
        if not self._waiting and not self._ended:
            return self._waiting
        self._history.remember(self._ended)
        self._ended.clear()
        for slot in sorted(self._waiting):
            output = self._table.tokens_of(slot)
            self._history.open(slot, np.array((*self._prompts[slot], *output), dtype=np.int64), output=len(output))
        fresh, self._waiting = self._waiting, set()
        return fresh

    def _put_away(self) -> None:
        """Forget the texts of running sequences: they are read again when drafts are wanted."""
        assert self._history is not None
        for slot in self._prompts.keys() - self._waiting:
            self._history.close(slot, keep=False)
            self._waiting.add(slot)
        self._reads = False


def _none() -> History | None:
    return None
