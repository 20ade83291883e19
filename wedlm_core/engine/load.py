"""What the coming forwards have in them besides what is being allotted, and what they then take. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.step_cost import StepCost

__all__ = ["Load", "StepTimes"]

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else is in the forward.

    Attributes:
        cost: seconds of a forward.
        host_seconds: of a step besides its forward (0 where they overlap).
        kv_tokens: cached tokens of all sequences.
        other_rows: rows that are spent anyway in each forward: those of sequences with fixed windows.
        most_rows: the row budget.
    """

    cost: StepCost
    host_seconds: float = 0.0
    kv_tokens: float = 0.0
    other_rows: float = 0.0
    most_rows: int = 1 << 30

    def seconds(self, rows: FloatArray, sequences: int) -> FloatArray:
        """Seconds of steps of ``rows [N]`` rows."""
        return self.host_seconds + self.cost(rows, self.kv_tokens, sequences)


class StepTimes:
    """:meth:`Load.seconds` looked up: an allotment asks for it a hundred times.

    Args:
        load: what is in the steps.
        sequences: how many they advance.
        most: rows, ``load.other_rows`` included, that will be asked for at most.
    """

    def __init__(self, load: Load, sequences: int, most: float) -> None:
        self._quantum = load.cost.quantum
        top = most + self._step(most)
        rows = np.arange(math.ceil(top / self._quantum) + 1, dtype=np.float64) * self._quantum
        self._seconds = load.seconds(rows, sequences)

    def at(self, rows: FloatArray) -> FloatArray:
        """Seconds of steps of ``rows [...]`` rows."""
        place = np.ceil(rows / self._quantum).astype(np.int64)
        return self._seconds[np.minimum(place, len(self._seconds) - 1)]

    def one(self, rows: float) -> float:
        """Seconds of a step."""
        return float(self._seconds[min(math.ceil(rows / self._quantum), len(self._seconds) - 1)])

    def slope(self, rows: float) -> float:
        """Seconds that one more row costs at ``rows``, over the next eighth of rows, 8 of them or a quantum."""
        step = self._step(rows)
        return (self.one(rows + step) - self.one(rows)) / step

    def _step(self, rows: float) -> float:
        return max(8.0, rows / 8, float(self._quantum))
