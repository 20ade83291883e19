"""What the coming forwards have in them besides what is being allocated, and what they then take. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

__all__ = ["HostTime", "Load", "StepTimes"]

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class HostTime:
    """What a step costs besides its forward, apart from what goes with sequences that come and go.

    Sequences are set up and finished once for all their tokens, however few forwards they take: the more a forward
    commits, the more of that falls to a step. It costs every choice of windows the same per token and so decides
    nothing; what falls to a step as such does. Told apart by least squares over the last hundred steps or so.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self._steps = self._turnover = self._squares = self._seconds = self._products = 0.0

    def took(self, seconds: float, turnover: int) -> None:
        """Take in a step of ``seconds`` in which ``turnover`` sequences came or went."""
        if self._steps > 1:
            seconds = min(seconds, self._tuning.disturbed * self._seconds / self._steps)
        self._steps = self._steps * self._tuning.host_kept + 1
        self._turnover = self._turnover * self._tuning.host_kept + turnover
        self._squares = self._squares * self._tuning.host_kept + turnover * turnover
        self._seconds = self._seconds * self._tuning.host_kept + seconds
        self._products = self._products * self._tuning.host_kept + seconds * turnover

    @property
    def known(self) -> bool:
        """Whether enough steps were seen."""
        return self._steps > self._tuning.host_prior

    def per_step(self) -> float:
        """Seconds of a step in which no sequence comes or goes."""
        if not self._steps:
            return 0.0
        mean = self._turnover / self._steps
        spread = self._squares - self._turnover * mean + self._tuning.host_prior
        if not self._tuning.turnover:
            return self._seconds / self._steps
        slope = (self._products - self._seconds * mean) / spread
        return (self._seconds - min(max(slope, 0.0) * self._turnover, 0.9 * self._seconds)) / self._steps


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else is in the forward.

    Attributes:
        cost: seconds of a forward.
        host_seconds: of a step besides its forward (0 where they overlap); see :class:`HostTime`.
        plain_host_seconds: the same of a step without masks; None where it is no other.
        kv_tokens: cached tokens of all sequences.
        other_rows: rows that are spent anyway in each forward: those of sequences with fixed windows.
        most_rows: the row budget.
    """

    cost: StepCost
    host_seconds: float = 0.0
    plain_host_seconds: float | None = None
    kv_tokens: float = 0.0
    other_rows: float = 0.0
    most_rows: int = 1 << 30

    def seconds(self, rows: FloatArray, sequences: int) -> FloatArray:
        """Seconds of steps of ``rows [...]`` rows in the mean: they vary, so padding costs half a quantum more."""
        place = rows / self.cost.quantum + 0.5
        below = np.floor(place)
        at = [self.cost((below + up) * self.cost.quantum, self.kv_tokens, sequences) for up in (0, 1)]
        return self.host_seconds + at[0] + (place - below) * (at[1] - at[0])


class StepTimes:
    """:meth:`Load.seconds` looked up: an allocation asks for it a hundred times.

    Args:
        load: what is in the steps.
        sequences: how many they advance.
        most: rows, ``load.other_rows`` included, that will be asked for at most.
    """

    def __init__(self, load: Load, sequences: int, most: float) -> None:
        self._quantum = load.cost.quantum
        quanta = np.arange(math.ceil((most + self._step(most)) / self._quantum) + 2.0)
        self._seconds = load.seconds((quanta - 0.5) * self._quantum, sequences)

    def at(self, rows: FloatArray) -> FloatArray:
        """Seconds of steps of ``rows [...]`` rows."""
        place = np.minimum(rows / self._quantum + 0.5, len(self._seconds) - 1 - 1e-9)
        below = place.astype(np.int64)
        return self._seconds[below] + (place - below) * (self._seconds[below + 1] - self._seconds[below])

    def one(self, rows: float) -> float:
        """Seconds of a step."""
        return float(self.at(np.array(rows)))

    def slope(self, rows: float) -> float:
        """Seconds that one more row costs at ``rows``, over the next eighth of rows, 8 of them or a quantum."""
        step = self._step(rows)
        return (self.one(rows + step) - self.one(rows)) / step

    def _step(self, rows: float) -> float:
        return max(8.0, rows / 8, float(self._quantum))
