"""StepCost: the seconds of one forward, as a function of its rows and of the KV tokens it reads. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wedlm_core.checks import is_number, is_whole

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of one forward.

    ``table(rows) + per_sequence * sequences + per_kv * kv_tokens + per_row_kv * rows * mean context``

    Attributes:
        rows: row counts of the table, ascending.
        seconds: seconds at these row counts, never falling.
        per_sequence: seconds per sequence, however many rows it has.
        per_kv: seconds per cached token, however many rows read it (memory traffic).
        per_row_kv: seconds per row and cached token of its sequence (arithmetic).
        quantum: row counts are rounded up to a multiple of this.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    per_sequence: float = 0.0
    per_kv: float = 0.0
    per_row_kv: float = 0.0
    quantum: int = 1

    def __call__(self, rows: FloatArray, kv_tokens: float, sequences: int) -> FloatArray:
        """Seconds of forwards with ``rows [N]`` rows, over ``sequences`` sequences with ``kv_tokens`` cached in total.

        The table is interpolated linearly, and extrapolated with the last slope.
        """
        rows = np.ceil(np.asarray(rows, dtype=np.float64) / self.quantum) * self.quantum
        knots, values = np.asarray(self.rows, dtype=np.float64), np.asarray(self.seconds)
        table = np.interp(rows, knots, values)
        if len(knots) > 1:
            slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
            table = table + np.maximum(rows - knots[-1], 0) * slope
        fixed = self.per_sequence * sequences + self.per_kv * kv_tokens
        return table + fixed + self.per_row_kv * rows * (kv_tokens / max(1, sequences))

    @classmethod
    def linear(cls, *, fixed: float, per_row: float, per_kv: float = 0.0, floor_rows: int = 0) -> StepCost:
        """``fixed`` seconds up to ``floor_rows`` rows, then ``per_row`` more for each."""
        return cls(
            rows=(max(1, floor_rows), max(1, floor_rows) + 1024),
            seconds=(fixed, fixed + 1024 * per_row),
            per_kv=per_kv,
        )


def why_not(cost: object) -> str | None:
    """Why ``cost`` is not a valid :class:`StepCost`; None if it is valid."""
    if not isinstance(cost, StepCost):
        return "None or a StepCost"
    rows, seconds = cost.rows, cost.seconds
    if not (isinstance(rows, tuple) and isinstance(seconds, tuple) and 1 <= len(rows) == len(seconds)):
        return "rows and seconds are tuples of the same length, 1 or more"
    if not all(is_whole(r, 1) for r in rows) or any(a >= b for a, b in pairwise(rows)):
        return "rows are integers of 1 or more, ascending"
    if not all(is_number(s, _MIN_SECONDS, _MAX_SECONDS) for s in seconds) or any(a > b for a, b in pairwise(seconds)):
        return f"seconds are numbers above 0, never falling, {_MAX_SECONDS:g} at most"
    if not all(is_number(slope, 0, _MAX_SECONDS) for slope in (cost.per_sequence, cost.per_kv, cost.per_row_kv)):
        return f"per_sequence, per_kv and per_row_kv are seconds of 0 or more, {_MAX_SECONDS:g} at most"
    return None if is_whole(cost.quantum, 1) else "quantum is an integer of 1 or more"


_MIN_SECONDS, _MAX_SECONDS = 1e-30, 1e9
