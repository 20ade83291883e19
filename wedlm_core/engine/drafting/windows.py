"""Keep the texts of sequences in history, and write drafts from it into their windows. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wedlm_core.engine.drafting.constants import DraftingConstants
from wedlm_core.engine.drafting.history import History
from wedlm_core.engine.drafting.step_time import StepReport
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable
from wedlm_core.kernels.cpu.draft_kernels import Columns, Windows, count_worth, write_drafts
from wedlm_core.statistics import DraftSource


class WindowState(Protocol):
    """The windows on the device; :class:`wedlm_core.engine.forward.device_state.DeviceState` implements it."""

    mask_token_id: int

    def windows_of(self, slots_D: IntArray) -> Windows:
        """Host copies of the windows of these slots, to be changed."""
        ...

    def set_windows_of(self, slots_D: IntArray, windows: Windows) -> None:
        """Copy changed windows to the device."""
        ...


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """Drafts from history for the D sequences of a forward.

    Attributes:
        token_DP: int32, proposed tokens.
        take_D: int64, number of them that a sequence should take; 0 where the drafts of masks are better.
    """

    token_DP: np.ndarray
    take_D: IntArray


class HistoryWindows:
    """Keeps the texts of sequences, and writes drafts that follow from them into windows.

    Args:
        table: slots; ``has_history`` is written, and ``rows`` and ``source`` of windows that get drafts.
        state: windows on the device.
        max_window: most masks of any request's window.
        max_bytes: memory of the history.
        constants: of drafting.

    Attributes:
        is_on: whether the arm that is on has history.
        placed: whether any window has drafts from history.
    """

    def __init__(
        self, table: SlotTable, state: WindowState, max_window: int, max_bytes: int, constants: DraftingConstants
    ) -> None:
        self._table, self._state, self._constants = table, state, constants
        self._history = History(len(table.limit), 2 * max_window, max_bytes=max_bytes, constants=constants)
        self.is_on, self.placed = False, False

    def open(self, slot: int, prompt: tuple[int, ...]) -> None:
        """Begin the text of a new sequence, which may get drafts from now on."""
        self._table.has_history[slot] = True
        self._history.open(slot, np.array(prompt, dtype=np.int64))

    def close(self, slot: int, *, keep: bool) -> None:
        """End the text of a sequence; with ``keep`` it joins the finished rows."""
        if self._table.has_history[slot] and keep:
            self._history.close(slot)
        self._table.has_history[slot], self._table.source[slot] = False, DraftSource.MASK

    @property
    def waits(self) -> bool:
        """Whether the next forward has to wait for the outcome of the one before: drafts follow its tokens."""
        return (self.is_on or self.placed) and bool(self._table.has_history.any())

    def draft(self, report: StepReport, accepted_2SW: np.ndarray, price: float) -> Suggestions | None:
        """Append the committed tokens, propose drafts for the sequences that go on, and write them into windows.

        Args:
            report: the step report.
            accepted_2SW: float64, probability that drafts of masks up to each offset are accepted, by slot.
            price: commits that a row has to gain.

        Returns:
            The drafts, for sequences with a grammar to choose from: their windows are written by
            :class:`wedlm_core.engine.constrained.constraints.Constraints`. None while history is off, or the next
            forward is in flight.
        """
        table, slots_D, history = self._table, report.slots_D, self._history
        own_D = table.has_history[slots_D]
        history.append(slots_D, report.outcome.token_DC, report.emit_D * own_D)
        if not report.can_draft or not (self.is_on or self.placed):
            return None
        lives_D = own_D & ~report.ended_D
        most_D = np.minimum(2 * table.widest[slots_D], table.limit[slots_D] - table.generated[slots_D])
        token_DP, acceptance_DP = history.propose(slots_D, most_D * lives_D if self.is_on else np.zeros_like(most_D))
        windows, take_D = self._state.windows_of(slots_D), np.empty(len(slots_D), dtype=np.int64)
        count_worth(
            slots_D, lives_D, acceptance_DP, report.outcome.next_valid_D, windows.lead[windows.place], accepted_2SW,
            max(price, self._constants.least_acceptance), take_D,
        )  # fmt: skip
        found = Suggestions(token_DP=token_DP, take_D=take_D)
        if self.placed or take_D.any():
            self._write(report, found, windows)
        return found if self.is_on else None

    def _write(self, report: StepReport, found: Suggestions, windows: Windows) -> None:
        """Write the next windows of sequences without a grammar."""
        table, slots_D, outcome = self._table, report.slots_D, report.outcome
        lives_D = table.has_history[slots_D] & ~(report.ended_D | table.constrained[slots_D])
        columns = Columns(*(getattr(table, name) for name in Columns._fields))
        if write_drafts(
            slots_D, lives_D, outcome.count_D, outcome.offered_D, found.token_DP, found.take_D, columns, windows,
            self._state.mask_token_id,
        ):  # fmt: skip
            self._state.set_windows_of(slots_D, windows)
        self.placed = bool((table.source == DraftSource.HISTORY).any())
