"""Price a forward: what steps take besides the rows that are being allocated. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wedlm_core.config.step_cost import FloatArray, StepCost
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

__all__ = ["CostCorrection", "HostTime", "Load"]


class HostTime:
    """Seconds of a step besides its forward; a step that was disturbed counts as a slow one only.

    A part of them goes with the tokens that the step committed (outputs end, others begin, a grammar takes them in):
    more tokens per forward do not make that part smaller. The rest is what a step costs however many it commits.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        # Sums over recent steps: of them, their seconds, commits, commits squared, and seconds times commits.
        self._sums = np.zeros(5)

    def record(self, seconds: float, commits: float) -> None:
        """Count a step."""
        if self._sums[0]:
            seconds = min(seconds, self._tuning.disturbed * self.mean())
        self._sums *= self._tuning.host_kept
        self._sums += np.array((1.0, seconds, commits, commits * commits, seconds * commits))

    def mean(self) -> float:
        """Seconds of a step; 0 where none was seen."""
        return float(self._sums[1] / max(1.0, self._sums[0]))

    def fixed(self) -> float:
        """Seconds of a step that would commit nothing, by least squares; 0 where none was seen.

        Where all steps commit alike, nothing tells the parts apart: all of it counts as fixed then.
        """
        if not self._sums[2]:
            return self.mean()
        seconds, commits, squares, products = (self._sums / self._sums[0])[1:].tolist()
        unlike = max(0.0, squares - commits**2) + self._tuning.commits_alike * commits**2
        per_commit = max(0.0, (products - seconds * commits) / unlike)
        return max(0.0, seconds - per_commit * commits)


class CostCorrection:
    """Seconds that forwards took over those of the table, by half octaves of rows."""

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self._factors: dict[int, float] = {}

    def record(self, rows: int, seconds: float, expected: float) -> None:
        """Count a forward of these rows that was expected to take ``expected`` seconds."""
        place, most = round(2 * math.log2(max(1, rows))), self._tuning.disturbed
        ratio = min(max(seconds / expected, 1 / most), most)
        before = self._factors.get(place, 1.0)
        self._factors[place] = before + self._tuning.correction * (ratio - before)

    def corrected(self, cost: StepCost) -> StepCost:
        """The table times the factors, interpolated between rows that forwards had.

        A table that ends before those rows gets knots there: no factor within it could bend what is extrapolated.
        """
        if not self._factors:
            return cost
        places, factors = np.array(sorted(self._factors.items())).T
        cost = _reaching(cost, np.round(2 ** (places / 2)))
        factor = np.interp(2 * np.log2(np.maximum(1, cost.rows)), places, factors)
        overall = float(factors.mean())
        return replace(
            cost,
            seconds=tuple(np.maximum.accumulate(np.array(cost.seconds) * factor).tolist()),
            per_sequence=cost.per_sequence * overall,
            per_kv=cost.per_kv * overall,
            per_row_kv=cost.per_row_kv * overall,
        )


def _reaching(cost: StepCost, rows: FloatArray) -> StepCost:
    """The same cost with knots at those of ``rows`` that lie beyond its table."""
    beyond = rows[rows > cost.rows[-1]]
    if not len(beyond) or len(cost.rows) < 2:
        return cost
    slope = (cost.seconds[-1] - cost.seconds[-2]) / (cost.rows[-1] - cost.rows[-2])
    seconds = cost.seconds[-1] + slope * (beyond - cost.rows[-1])
    return replace(cost, rows=(*cost.rows, *beyond.astype(int).tolist()), seconds=(*cost.seconds, *seconds.tolist()))


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else is in the step.

    Attributes:
        cost: seconds of a forward.
        host_seconds: of a step besides its forward, whatever it commits (0 where they overlap).
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
        """Seconds of steps of ``rows [...]`` rows in the mean: they vary, so padding costs half a quantum more."""
        place = rows / self.cost.quantum + 0.5
        below = np.floor(place)
        low, high = (self.cost((below + up) * self.cost.quantum, self.kv_tokens, sequences) for up in (0, 1))
        return self.host_seconds + low + (place - below) * (high - low)

    def slope(self, rows: float, sequences: int) -> float:
        """Seconds that one more row costs at ``rows``, over the next eighth of rows, 8 of them or a quantum."""
        step = max(8.0, rows / 8, float(self.cost.quantum))
        here, there = self.seconds(np.array([rows, rows + step]), sequences)
        return float(there - here) / step
