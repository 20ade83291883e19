"""Step time: the measured table of forwards, times the speed of the machine, plus the host's seconds. Torch-free.

The table says how long a forward of some rows takes. The *speed* follows how long forwards take now. A trial runs other
rows than usual, so it may correct the table at those rows relative to the usual ones (a *knot*).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wedlm_core.config.step_cost import FloatArray, StepCost
from wedlm_core.engine.drafting.constants import DraftingConstants
from wedlm_core.engine.drafting.cost_table import monotone
from wedlm_core.kernels.cpu.planning import forward_seconds

__all__ = ["MOST_OFF", "Load", "StepTime"]

_LEAST_HOST = 1e-7  # seconds; below the resolution of clocks
MOST_OFF = math.log(3.0)  # bound on log(measured / expected seconds): a forward beyond it was disturbed


@dataclass(frozen=True, kw_only=True)
class Load:
    """The work of a step in addition to the rows that are allocated, and its times.

    Attributes:
        cost: seconds of a forward, corrected.
        host_seconds: seconds of a step besides its forward; 0 where the host's work overlaps with forwards.
        spared_alone: seconds that the host saves in a step without drafts and masks.
        kv_tokens: cached tokens of all sequences.
        other_rows: rows of sequences with fixed windows.
        most_rows: the row budget.
        prefill_rows: mean rows of prompts per commit.
        burst_rows: mean rows of prompts in a forward that has any.
        are_bounds: rows are upper bounds, and forwards are padded to them; otherwise they are means.
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

    def seconds(self, rows_N: FloatArray, sequences: int) -> FloatArray:
        """Mean seconds of steps of ``rows_N`` rows; padding to the quantum adds half a quantum of rows on average."""
        cost, out_N = self.cost, np.empty(len(rows_N))
        if self.are_bounds:
            rows_N = np.ceil(rows_N / cost.quantum) * cost.quantum - cost.quantum / 2
        fixed = self.host_seconds + cost.per_sequence * sequences + cost.per_kv * self.kv_tokens
        per_row = cost.per_row_kv * (self.kv_tokens / max(1, sequences))
        rows_K, seconds_K = np.array((cost.rows, cost.seconds), dtype=np.float64)
        forward_seconds(rows_N, rows_K, seconds_K, cost.quantum, fixed, per_row, out_N)
        return out_N

    def prefill_seconds(self, rows_N: FloatArray, commits_N: FloatArray, sequences: int) -> FloatArray:
        """Seconds of the prefill for ``commits_N`` commits, in forwards that have ``rows_N`` decode rows."""
        if not self.prefill_rows:
            return np.zeros(len(rows_N))
        burst_N = self.seconds(rows_N + self.burst_rows, sequences) - self.seconds(rows_N, sequences)
        return commits_N * (self.prefill_rows / self.burst_rows) * burst_N

    def slope(self, rows: float, sequences: int) -> float:
        """Seconds of one more row: the mean over the next 8 rows, an eighth of the rows, or a quantum.

        Where rows are bounds, the mean is over twice the rows, so that all of them share the cost of a jump in the
        table.
        """
        step = max(8.0, rows if self.are_bounds else rows / 8, float(self.cost.quantum))
        here, there = self.seconds(np.array([rows, rows + step]), sequences)
        return float(there - here) / step


class StepTime:
    """Seconds of steps, learned from past steps.

    Args:
        constants: of drafting.
        is_given: the user gave the table, so trials do not correct it.
    """

    def __init__(self, constants: DraftingConstants, *, is_given: bool = False) -> None:
        self._constants = constants
        self._speed = 0.0  # logarithm of a forward's seconds over those of the table
        self._host_2 = [0.0, 0.0]  # seconds of a step besides its forward: without drafts, and with drafts
        self._hosts_2 = [0, 0]  # steps that these means are of
        self._knots: dict[int, float] = {}  # half octave of rows -> log(measured / expected seconds), without the speed
        self._rows, self._forwards = 0.0, 0  # mean rows of the usual forwards, and their number
        self.is_given = is_given

    def expected(self, cost: StepCost, rows: float, kv_tokens: float, sequences: int) -> float:
        """Expected seconds of a forward by the corrected table."""
        table = float(cost(np.array([rows]), kv_tokens, sequences)[0])
        return table * math.exp(self._speed + self._knot(rows))

    def record(self, rows: float, off: float) -> None:
        """Count a forward of the usual arm.

        Args:
            rows: of the forward.
            off: logarithm of its seconds over :meth:`expected`.
        """
        self._forwards += 1
        kept = min(self._constants.speed_kept, 1 - 1 / self._forwards)
        self._speed += (1 - kept) * (off if self._forwards <= 2 else min(max(off, -MOST_OFF), MOST_OFF))
        self._rows += (1 - kept) * (rows - self._rows)

    def record_host(self, seconds: float, *, drafts: bool, is_usual: bool) -> None:
        """Count the seconds of a step besides its forward.

        The mean is of logarithms, so that a first step of fifty times the usual seconds is soon outweighed.

        Args:
            seconds: of the step without its forward.
            drafts: whether the step had drafts or masks.
            is_usual: no prompt was read and no output ended. Other steps take longer, so they may only lower the mean.
        """
        before, seconds = self._host_2[drafts], max(seconds, _LEAST_HOST)
        if before and not is_usual and seconds >= before:
            return
        self._hosts_2[drafts] += 1
        kept = min(self._constants.speed_kept, 1 - 1 / self._hosts_2[drafts])
        self._host_2[drafts] = before**kept * seconds ** (1 - kept) if before else seconds

    def correct(self, rows: float, off: float) -> bool:
        """Set a knot by a trial.

        Args:
            rows: mean rows of the trial's forwards.
            off: mean logarithm of their seconds over :meth:`expected`.

        Returns:
            Whether it was set; False for a given table, or about the usual number of rows.
        """
        usual, place = _half_octave(self._rows), _half_octave(rows)
        if usual == place or self.is_given:
            return False
        found = self._knot(rows) + min(max(off, -MOST_OFF), MOST_OFF)
        self._knots.setdefault(usual, self._knot(self._rows))
        self._knots[place] = found
        return True

    def _knot(self, rows: float) -> float:
        if not self._knots:
            return 0.0
        places, values = zip(*sorted(self._knots.items()), strict=True)
        return float(np.interp(2 * math.log2(max(1.0, rows)), places, values))

    @property
    def usual_rows(self) -> float:
        """Mean rows of the forwards of the usual arm."""
        return self._rows

    def host_seconds(self, *, drafts: bool) -> float:
        """Seconds of a step besides its forward, with or without drafts; those of the other kind while unknown."""
        return self._host_2[drafts] or self._host_2[not drafts]

    def corrected(self, cost: StepCost) -> StepCost:
        """The table times the speed and the corrections at knots, with a row count added for each knot."""
        speed = math.exp(self._speed)
        others = {name: getattr(cost, name) * speed for name in ("per_sequence", "per_kv", "per_row_kv")}
        if not self._knots:
            return replace(cost, seconds=tuple(speed * seconds for seconds in cost.seconds), **others)
        places, values = zip(*sorted(self._knots.items()), strict=True)
        knots = sorted({*cost.rows, *(round(2 ** (place / 2)) for place in places)})
        if len(cost.rows) < 2:
            knots = [knot for knot in knots if knot <= cost.rows[-1]]
        plain = replace(cost, per_sequence=0.0, per_kv=0.0, per_row_kv=0.0, quantum=1)
        rows_K = np.array(knots, dtype=np.float64)
        off_K = np.interp(2 * np.log2(rows_K), places, values)
        seconds_K = monotone((plain(rows_K, 0.0, 1) * speed * np.exp(off_K)).tolist())
        return replace(cost, rows=tuple(knots), seconds=tuple(seconds_K.tolist()), **others)


def _half_octave(rows: float) -> int:
    return round(2 * math.log2(max(1.0, rows)))
