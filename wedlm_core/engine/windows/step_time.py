"""Price a forward: what steps take besides the rows that are being allocated. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wedlm_core.config.step_cost import FloatArray, StepCost
from wedlm_core.engine.windows.step_cost import monotone
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning
from wedlm_core.kernels.cpu.planning import forward_seconds

__all__ = ["CostCorrection", "HostTime", "Load"]


class HostTime:
    """Seconds of a step besides its forward; a step that was disturbed counts as a slow one only.

    A part of them goes with the tokens that the step committed (outputs end, others begin, a grammar takes them in):
    more tokens per forward do not make that part smaller. The rest is what a step costs however many it commits. A step
    with drafts costs more than one without: they are laid out, counted and learned from. The first of either kind does
    not count, as it loads what later ones find. A step with prefill counts little: with it sequences come in, and they
    do that once. Where outputs end after a step or two, few are without it, and those of one kind may all be with it.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        # Without drafts and with some, sums over recent steps: of them, their seconds, commits, commits squared, and
        # seconds times commits. Plain numbers, since five of them are quicker than an array.
        self._sums_2K = [[0.0] * 5, [0.0] * 5]
        self._began_2 = [False, False]

    def record(self, seconds: float, commits: float, *, drafts: bool, prefill: bool = False) -> None:
        """Count a step, with drafts or without any, and with rows of prefill or without."""
        kind, weight = int(drafts), self._tuning.host_prefill if prefill else 1.0
        kept = self._tuning.host_kept**weight
        if not self._began_2[kind]:
            self._began_2[kind] = True
            return
        sums, other = self._sums_2K[kind], self._sums_2K[1 - kind]
        like = sums if sums[0] else other
        if like[0]:
            seconds = min(seconds, self._tuning.disturbed * like[1] / like[0])
        new = (1.0, seconds, commits, commits * commits, seconds * commits)
        sums[:] = [kept * before + weight * one for before, one in zip(sums, new, strict=True)]

    def fixed(self, *, drafts: bool) -> float:
        """Seconds of a step that would commit nothing; as if with (without) drafts where all were without (with).

        0 where none was seen. Where all steps commit alike, nothing tells the parts apart: all of it is fixed then.
        """
        seen = self._sums_2K[int(drafts)]
        steps, seconds, commits, *_ = seen if seen[0] else self._sums_2K[1 - int(drafts)]
        return max(0.0, seconds - self._per_commit() * commits) / (steps or 1.0)

    def _per_commit(self) -> float:
        """Seconds that go with each commit, by least squares within the two kinds of steps."""
        along, unlike = 0.0, 0.0
        for steps, seconds, commits, squares, products in self._sums_2K:
            mean = commits / (steps or 1.0)
            unlike += max(0.0, squares - mean * commits) + self._tuning.commits_alike * mean * commits
            along += products - mean * seconds
        return max(0.0, along / unlike) if unlike else 0.0


class CostCorrection:
    """Seconds that forwards took over those of the table, by half octaves of rows."""

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self._factors: dict[int, float] = {}

    def record(self, rows: int, seconds: float, expected: float, times: int = 1) -> None:
        """Count a forward of these rows that was expected to take ``expected`` seconds as so many alike."""
        place, most = round(2 * math.log2(max(1, rows))), self._tuning.disturbed
        ratio = min(max(seconds / expected, 1 / most), most)
        before = self._factors.get(place)
        if before is None:  # taken to be off as rows nearby are
            known = sorted(self._factors.items()) or [(place, 1.0)]
            before = float(np.interp(place, *np.array(known).T))
        self._factors[place] = ratio + (1 - self._tuning.correction) ** times * (before - ratio)

    def corrected(self, cost: StepCost) -> StepCost:
        """The table times the factors, interpolated between rows that forwards had.

        The table gets knots at those rows: no factor elsewhere could bend what lies between two, or beyond the last.
        """
        if not self._factors:
            return cost
        places, factors = np.array(sorted(self._factors.items())).T
        cost = _with_knots(cost, np.round(2 ** (places / 2)))
        factor = np.interp(2 * np.log2(np.maximum(1, cost.rows)), places, factors)
        overall = float(factors.mean())
        return replace(
            cost,
            seconds=tuple(monotone(np.array(cost.seconds) * factor).tolist()),
            per_sequence=cost.per_sequence * overall,
            per_kv=cost.per_kv * overall,
            per_row_kv=cost.per_row_kv * overall,
        )


def _with_knots(cost: StepCost, rows: FloatArray) -> StepCost:
    """The same cost with knots at ``rows`` too, beyond the ends of its table as well."""
    knots = sorted({*cost.rows, *rows.astype(int).tolist()})
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
    """

    cost: StepCost
    host_seconds: float = 0.0
    spared_alone: float = 0.0
    kv_tokens: float = 0.0
    other_rows: float = 0.0
    most_rows: int = 1 << 30

    def seconds(self, rows: FloatArray, sequences: int) -> FloatArray:
        """Seconds of steps of ``rows [N]`` rows in the mean: they vary, so padding costs half a quantum more."""
        cost, out_N = self.cost, np.empty(len(rows))
        fixed = self.host_seconds + cost.per_sequence * sequences + cost.per_kv * self.kv_tokens
        per_row = cost.per_row_kv * (self.kv_tokens / max(1, sequences))
        forward_seconds(rows, *self._table, cost.quantum, fixed, per_row, out_N)
        return out_N

    @cached_property
    def _table(self) -> FloatArray:
        """Rows and seconds of the table."""
        return np.array((self.cost.rows, self.cost.seconds), dtype=np.float64)

    def slope(self, rows: float, sequences: int) -> float:
        """Seconds that one more row costs at ``rows``, over the next eighth of rows, 8 of them or a quantum."""
        step = max(8.0, rows / 8, float(self.cost.quantum))
        here, there = self.seconds(np.array([rows, rows + step]), sequences)
        return float(there - here) / step
