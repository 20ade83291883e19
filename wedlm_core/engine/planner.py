"""Who gets how many masks in the coming forwards: survival, cost and load brought together. Torch-free.

Sequences with ``window_size="auto"`` are planned together every few forwards. What is decided takes effect
when windows are refilled at the end of the next forward, so the decision never waits for the device.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.allotment import Load, allot, long_run
from wedlm_core.engine.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.step_cost import StepCost
from wedlm_core.engine.survival import Survival

__all__ = ["WindowPlanner"]

_EVERY = 4  # forwards between two plans
_SMOOTH = 0.05  # weight of one forward in the average of prefill rows
_PROBE_SHARE = 0.01  # share of rows spent on finding out whether masks would pay where none are forwarded
_PROBE_MASKS = 4


class WindowPlanner:
    """Keeps ``masks``, ``keep_intact`` and ``keep_broken`` of the slot table up to date for adaptive slots.

    Args:
        table: slots; ``adaptive``, ``widest``, ``limit``, ``generated``, ``cached`` and ``rows`` are read.
        widest: the largest window of any request.
        most_rows: the engine's row budget.
    """

    def __init__(self, table: SlotTable, widest: int, most_rows: int) -> None:
        self._table, self._most_rows = table, most_rows
        self._survival = Survival(len(table.limit), max(1, widest))
        self._prefill_rows = 0.0
        self._age = 0
        self._credit = 0.0
        self._last_probe = np.zeros(len(table.limit), dtype=np.int64)
        self._plans = 0

    def admit(self, slots_S: IntArray) -> None:
        """Forget what earlier users of these slots did."""
        for slot in slots_S.tolist():
            self._survival.clear(slot)
        self._age = _EVERY  # a new sequence changes the load: plan again

    def observe(self, slots_D: IntArray, rows_D: IntArray, outcome: StepOutcome, prefill_rows: int) -> None:
        """Take in the outcome of a forward of ``rows_D`` decode rows; ``prefill_rows`` went with it."""
        self._prefill_rows += _SMOOTH * (prefill_rows - self._prefill_rows)
        self._age += 1
        mine = self._table.adaptive[slots_D] & (rows_D > 1)  # a head alone tells nothing
        if mine.any():
            self._survival.observe(
                slots_D[mine],
                outcome.intact_D[mine],
                outcome.offered_D[mine],
                outcome.agreed_D[mine],
                outcome.next_intact_D[mine],
            )

    def finished(self, tokens: int) -> None:
        """An adaptive sequence's output ended at this length by itself."""
        self._survival.finished(tokens)

    def plan(self, slots_R: IntArray, cost: StepCost, spare_tokens: int) -> bool:
        """Plan for the running slots where it is time to; True if the table's windows were rewritten.

        Args:
            slots_R: all running slots.
            cost: of forwards.
            spare_tokens: KV entries that are free: windows do not grow into what is not there.
        """
        if self._age < _EVERY:
            return False
        self._age = 0
        table = self._table
        mine_R = table.adaptive[slots_R]
        slots_S = slots_R[mine_R]
        if not len(slots_S):
            return False
        fixed_rows = float(table.rows[slots_R[~mine_R]].sum())
        load = Load(
            cost=cost,
            kv_tokens=float(table.cached[slots_R].sum()),
            other_rows=fixed_rows + self._prefill_rows,
            most_rows=min(self._most_rows, int(table.rows[slots_R].sum()) + spare_tokens),
        )
        broken_SW, intact_SW = self._survival.by_kind(slots_S)
        alive_SW = self._survival.alive(table.generated[slots_S])
        keep_S = np.where(table.keep_broken[slots_S] < 0, table.widest[slots_S], table.keep_broken[slots_S])
        run = long_run(intact_SW, broken_SW, self._survival.agreement(slots_S), keep_S, alive_SW)
        widest_S = np.minimum(table.widest[slots_S], table.limit[slots_S] - table.generated[slots_S])
        chosen = allot(run, widest_S, load, table.masks[slots_S])
        table.masks[slots_S] = self._probed(slots_S, chosen.masks_S, widest_S)
        # A draft that is there already costs one row, and is worth it while it is likely enough to survive.
        most_S = table.widest[slots_S]
        table.keep_broken[slots_S] = np.minimum((broken_SW * alive_SW >= chosen.row_price).sum(axis=-1), most_S)
        table.keep_intact[slots_S] = np.minimum((intact_SW * alive_SW >= chosen.row_price).sum(axis=-1), most_S)
        self._plans += 1
        return True

    def _probed(self, slots_S: IntArray, masks_S: IntArray, widest_S: IntArray) -> IntArray:
        """Give one sequence without masks a few, now and then: else a sequence that got easier is never found out."""
        self._credit += _PROBE_SHARE * _EVERY * len(slots_S)
        price = _EVERY * 2 * _PROBE_MASKS
        idle: BoolArray = (masks_S < 2) & (widest_S >= _PROBE_MASKS)
        if self._credit < price or not idle.any():
            self._credit = min(self._credit, price)
            return masks_S
        self._credit -= price
        place = int(np.where(idle, self._last_probe[slots_S], np.iinfo(np.int64).max).argmin())
        self._last_probe[slots_S[place]] = self._plans
        probed = masks_S.copy()
        probed[place] = _PROBE_MASKS
        return probed
