"""Keep new sequences within the rows that a plan paid for, where forwards are padded. Torch-free."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.windows.step_time import Load

__all__ = ["PaddedRows"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_MANY = 4  # one in so many
_FLAT = 1.02  # times the seconds of a forward that rows behind it may take before that is a jump


class PaddedRows:
    """Rows that sequences may have at most: a head, as many drafts as masks, the masks.

    Windows fill forwards up to a jump of the cost. One sequence that comes in with more masks than the one that ended
    would put every forward up to the next plan beyond it.

    Args:
        slots: of the engine.
    """

    def __init__(self, slots: int) -> None:
        self._rows_S = np.zeros(slots, dtype=np.int64)
        self._most = 0

    def plan(self, slots_S: IntArray, masks_S: IntArray, widest_S: IntArray, new_masks: int, load: Load) -> None:
        """Take in a plan: rows up to the next jump of the cost are paid for.

        Args:
            slots_S: sequences whose windows were planned.
            masks_S: of each.
            widest_S: masks at most, up to the end of the output.
            new_masks: of a sequence that comes in. Where many are about to end, each of these counts as the one that
                follows it: outputs are short, and the plan is not what forwards will be like.
            load: what forwards cost.
        """
        self._rows_S[:] = 0
        ending_S = widest_S < new_masks
        if np.count_nonzero(ending_S) * _MANY > len(ending_S):
            masks_S = np.where(ending_S, new_masks, masks_S)
        self._rows_S[slots_S] = 1 + 2 * masks_S
        rows, quantum = int(load.other_rows + self._rows_S.sum()), load.cost.quantum
        first = -(-rows // quantum)
        rows_N = np.arange(first, 2 * first + 1) * quantum
        seconds_N = load.seconds(rows_N.astype(np.float64), len(slots_S))
        beyond_N = np.flatnonzero(seconds_N > _FLAT * seconds_N[0])
        end = int(rows_N[beyond_N[0] - 1] if len(beyond_N) else rows_N[-1])
        self._most = max(rows, min(end, load.most_rows)) - int(load.other_rows)

    def admit(self, slot: int, masks: int) -> int:
        """Masks that a sequence may begin with which wants so many."""
        self._rows_S[slot] = 0
        allowed = min(masks, max(0, (self._most - int(self._rows_S.sum()) - 1) // 2))
        self._rows_S[slot] = 1 + 2 * allowed
        return allowed
