"""Price a forward: what steps take besides the rows that are being allocated. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from wedlm_core.config.step_cost import FloatArray, StepCost
from wedlm_core.engine.windows.step_cost import monotone
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning
from wedlm_core.kernels.cpu.planning import forward_seconds
from wedlm_core.kernels.cpu.purchase import Prices

__all__ = ["CostCorrection", "HostTime", "Load"]

_LEAST_RATIO = 1e-3  # a clock that is coarse says 0


class HostTime:
    """Seconds of a step besides its forward; a step that was disturbed counts as a slow one only.

    A part of them goes with the tokens that the step committed (outputs end, a grammar takes them in), and a part with
    the sequences that came in with it: more tokens per forward make neither smaller. The rest is what a step costs
    however much it does. A step with drafts costs more than one without: they are laid out, counted and learned from.
    The first of either kind does not count, as it loads what later ones find.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        # Without drafts and with some, sums over recent steps. Plain numbers: a few are quicker than an array.
        self._sums_2 = [_Sums(), _Sums()]
        self._began_2 = [False, False]

    def record(self, seconds: float, commits: float, *, drafts: bool, admitted: int = 0) -> None:
        """Count a step.

        Args:
            seconds: of it, besides its forward.
            commits: tokens that it committed.
            drafts: whether any sequence had drafts in it.
            admitted: sequences that came in with it.
        """
        kind = int(drafts)
        if not self._began_2[kind]:
            self._began_2[kind] = True
            return
        sums = self._sums_2[kind]
        like = sums if sums.steps else self._sums_2[1 - kind]
        if like.steps:
            seconds = min(seconds, self._tuning.disturbed * like.seconds / like.steps)
        sums.add(seconds, commits, float(admitted), self._tuning.host_kept)

    def fixed(self, *, drafts: bool) -> float:
        """Seconds of a step that would do nothing; as if with (without) drafts where all were without (with).

        0 where none was seen. Where all steps commit alike, nothing tells the parts apart: all of it is fixed then.
        """
        seen = self._sums_2[int(drafts)]
        seen = seen if seen.steps else self._sums_2[1 - int(drafts)]
        per_commit, per_admitted = self._slopes()
        going_along = per_commit * seen.commits + per_admitted * seen.admitted
        return max(0.0, seen.seconds - going_along) / max(1.0, seen.steps)

    def _slopes(self) -> tuple[float, float]:
        """Seconds of each commit, and of each sequence that comes in: least squares within the two kinds of steps."""
        cc = ca = aa = sc = sa = 0.0
        for sums in self._sums_2:
            steps = max(1.0, sums.steps)
            commits, admitted, alike = sums.commits / steps, sums.admitted / steps, self._tuning.commits_alike
            cc += max(0.0, sums.commits_2 - commits * sums.commits) + alike * commits * sums.commits
            aa += max(0.0, sums.admitted_2 - admitted * sums.admitted) + alike * admitted * sums.admitted
            ca += sums.both - commits * sums.admitted
            sc += sums.seconds_commits - commits * sums.seconds
            sa += sums.seconds_admitted - admitted * sums.seconds
        apart = cc * aa - ca * ca
        if apart > 0:
            per_commit, per_admitted = (sc * aa - sa * ca) / apart, (sa * cc - sc * ca) / apart
            if per_commit >= 0 and per_admitted >= 0:
                return per_commit, per_admitted
        # One explains nothing beside the other: that alone which explains more.
        by_commits, by_admitted = (max(0.0, sc) / cc if cc else 0.0), (max(0.0, sa) / aa if aa else 0.0)
        return (by_commits, 0.0) if by_commits * max(0.0, sc) >= by_admitted * max(0.0, sa) else (0.0, by_admitted)


@dataclass(slots=True)
class _Sums:
    """Sums over steps: of them, their seconds, commits and sequences that came in, and of products of these."""

    steps: float = 0.0
    seconds: float = 0.0
    commits: float = 0.0
    admitted: float = 0.0
    commits_2: float = 0.0
    admitted_2: float = 0.0
    both: float = 0.0
    seconds_commits: float = 0.0
    seconds_admitted: float = 0.0

    def add(self, seconds: float, commits: float, admitted: float, kept: float) -> None:
        """Add a step; of what was there a share is kept."""
        self.steps = kept * self.steps + 1.0
        self.seconds = kept * self.seconds + seconds
        self.commits = kept * self.commits + commits
        self.admitted = kept * self.admitted + admitted
        self.commits_2 = kept * self.commits_2 + commits * commits
        self.admitted_2 = kept * self.admitted_2 + admitted * admitted
        self.both = kept * self.both + commits * admitted
        self.seconds_commits = kept * self.seconds_commits + seconds * commits
        self.seconds_admitted = kept * self.seconds_admitted + seconds * admitted


@dataclass(slots=True)
class _Estimate:
    """The logarithm of a factor, its variance, and the forward that changed it last."""

    value: float
    variance: float
    at: int = 0


class CostCorrection:
    """Seconds that forwards took over those of the table: the machine's speed, times a factor by half octaves of rows.

    The speed changes from moment to moment, and with it that of forwards which do not run now; how the table is wrong
    about some rows more than about others does not. Were each factor its own affair, a machine that becomes faster
    would make wider forwards, which have not run since, seem dear. Both are filtered (R. E. Kalman, 1960): what a
    forward tells goes to the one that is known less well.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning, self._forwards = tuning, 0
        self._speed = _Estimate(0.0, tuning.speed_error**2)
        self._shape: dict[int, _Estimate] = {}  # by half octaves of rows

    def record(self, rows: int, seconds: float, expected: float, times: int = 1) -> None:
        """Count a forward of these rows that was expected to take ``expected`` seconds as so many alike."""
        if not (math.isfinite(seconds) and 0 < expected < math.inf):
            return
        tuning, place = self._tuning, round(2 * math.log2(max(1, rows)))
        self._forwards += 1
        shape = self._shape.get(place)
        if shape is None:
            shape = self._shape[place] = _Estimate(self._nearby(place), tuning.shape_error**2, self._forwards)
        self._speed.variance += tuning.speed_drift**2
        # No less is known of rows that did not run for long than of those that never did.
        drifted = shape.variance + (self._forwards - shape.at) * tuning.shape_drift**2
        shape.variance = min(drifted, max(shape.variance, tuning.shape_error**2))
        shape.at = self._forwards
        variance = self._speed.variance + shape.variance + tuning.forward_error**2 / times
        most = tuning.unlikely * math.sqrt(variance)  # by more, the forward was disturbed
        found = min(max(math.log(max(seconds / expected, _LEAST_RATIO)) - self._speed.value - shape.value, -most), most)
        for known in (self._speed, shape):
            gain = known.variance / variance
            known.value += gain * found
            known.variance *= 1 - gain

    def _nearby(self, place: int) -> float:
        """What rows of which none were seen are taken to be off: as those nearby are."""
        known = sorted((other, math.exp(shape.value)) for other, shape in self._shape.items()) or [(place, 1.0)]
        return math.log(float(np.interp(place, *np.array(known).T)))

    def corrected(self, cost: StepCost) -> StepCost:
        """The table times the factors, interpolated between rows that forwards had.

        The table gets knots at those rows: no factor elsewhere could bend what lies between two, or beyond the last.
        """
        if not self._shape:
            return cost
        speed = self._speed.value
        places, factors = np.array(sorted((place, math.exp(speed + own.value)) for place, own in self._shape.items())).T
        cost = _with_knots(cost, tuple(np.round(2 ** (places / 2)).astype(int).tolist()))
        factor = np.interp(2 * np.log2(np.maximum(1, cost.rows)), places, factors)
        overall = float(factors.mean())
        return replace(
            cost,
            seconds=tuple(monotone(np.array(cost.seconds) * factor).tolist()),
            per_sequence=cost.per_sequence * overall,
            per_kv=cost.per_kv * overall,
            per_row_kv=cost.per_row_kv * overall,
        )


@lru_cache(maxsize=8)  # plan by plan these are nearly always the same
def _with_knots(cost: StepCost, rows: tuple[int, ...]) -> StepCost:
    """The same cost with knots at ``rows`` too, beyond the ends of its table as well."""
    knots = sorted({*cost.rows, *rows})
    if len(cost.rows) < 2:
        knots = [knot for knot in knots if knot <= cost.rows[-1]]
    table = replace(cost, per_sequence=0.0, per_kv=0.0, per_row_kv=0.0, quantum=1)
    return replace(cost, rows=tuple(knots), seconds=tuple(table(np.array(knots), 0.0, 1).tolist()))


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else is in the step.

    Attributes:
        cost: seconds of a forward.
        host_seconds: of a step besides its forward, whatever it commits (0 where they overlap).
        spared_alone: host seconds less in a step in which no sequence has masks.
        kv_tokens: cached tokens of all sequences.
        other_rows: rows that are spent anyway in each forward: those of sequences with fixed windows.
        most_rows: the row budget.
        prefill_rows: rows of the next prompts for each commit, which brings these nearer.
        burst_rows: of those that go into one forward together.
        are_bounds: whether rows are those that a forward is padded to, and not what it has in the mean.
    """

    cost: StepCost
    host_seconds: float = 0.0
    spared_alone: float = 0.0
    kv_tokens: float = 0.0
    other_rows: float = 0.0
    most_rows: int = 1 << 30
    prefill_rows: float = 0.0
    burst_rows: float = 1.0
    are_bounds: bool = False

    def seconds(self, rows: FloatArray, sequences: int) -> FloatArray:
        """Seconds of steps of ``rows [N]`` rows in the mean: they vary, so padding costs half a quantum more.

        Where they are bounds, forwards have so many exactly, rounded up.
        """
        out_N, quantum = np.empty(len(rows)), self.cost.quantum
        if self.are_bounds:
            rows = np.ceil(rows / quantum) * quantum - quantum / 2
        forward_seconds(rows, *self._table, quantum, *self._beside(sequences), out_N)
        return out_N

    def _beside(self, sequences: int) -> tuple[float, float]:
        """Seconds of a step besides its rows, and of each row besides those of the table."""
        cost = self.cost
        fixed = self.host_seconds + cost.per_sequence * sequences + cost.per_kv * self.kv_tokens
        return fixed, cost.per_row_kv * (self.kv_tokens / max(1, sequences))

    def prices(self, sequences: int, most_rows: float, *, near_optimal: float, seconds_per_commit: float) -> Prices:
        """The same for kernels, with what else they go by."""
        knots, seconds = self._table
        fixed, per_row = self._beside(sequences)
        return Prices(
            knots, seconds, float(self.cost.quantum), fixed, per_row, self.spared_alone, float(sequences), most_rows,
            near_optimal, seconds_per_commit,
        )  # fmt: skip

    def prefill_seconds(self, rows: FloatArray, commits: FloatArray, sequences: int) -> FloatArray:
        """Seconds of the prefill that comes with ``commits [N]`` and joins some forwards of ``rows [N]``."""
        if not self.prefill_rows:
            return np.zeros(len(rows))
        burst = self.seconds(rows + self.burst_rows, sequences) - self.seconds(rows, sequences)
        return commits * (self.prefill_rows / self.burst_rows) * burst

    @cached_property
    def _table(self) -> FloatArray:
        """Rows and seconds of the table."""
        return np.array((self.cost.rows, self.cost.seconds), dtype=np.float64)

    def slope(self, rows: float, sequences: int) -> float:
        """Seconds that one more row costs at ``rows``, over the next eighth of rows, 8 of them or a quantum.

        Over as many again where rows are bounds: a jump in the table is paid once, and not by each row.
        """
        step = max(8.0, rows if self.are_bounds else rows / 8, float(self.cost.quantum))
        here, there = self.seconds(np.array([rows, rows + step]), sequences)
        return float(there - here) / step
