"""Step time: the measured seconds of forwards, plus those of the host; and the report of a step. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.config.step_cost import FloatArray, StepCost
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, StepOutcome


@dataclass(frozen=True, kw_only=True)
class Load:
    """The work of a step in addition to the rows that are allocated, and its times.

    Attributes:
        cost: seconds of a forward.
        host_seconds: seconds of a step besides its forward; 0 where the host's work overlaps with forwards.
        kv_tokens: cached tokens of all sequences.
        other_rows: rows of sequences with fixed windows.
        most_rows: the row budget.
        prefill_rows: mean rows of prompts per commit.
        burst_rows: mean rows of prompts in a forward that has any.
        are_bounds: rows are upper bounds, and forwards are padded to them; otherwise they are means.
    """

    cost: StepCost
    host_seconds: float = 0.0
    kv_tokens: float = 0.0
    other_rows: float = 0.0
    most_rows: int = 1 << 30
    prefill_rows: float = 0.0
    burst_rows: float = 1.0
    are_bounds: bool = False

    def seconds(self, rows_N: FloatArray, sequences: int) -> FloatArray:
        """Mean seconds of steps of ``rows_N`` rows; padding adds (quantum - 1) / 2 to a mean."""
        quantum = self.cost.quantum
        place_N = np.ceil(rows_N / quantum) if self.are_bounds else (rows_N + (quantum - 1) / 2) / quantum
        below_N = np.floor(place_N)
        low_N, high_N = (self.cost((below_N + up) * quantum, self.kv_tokens, sequences) for up in (0, 1))
        return self.host_seconds + low_N + (place_N - below_N) * (high_N - low_N)

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


class HostTime:
    """Seconds of steps besides their forwards, without drafts and with drafts.

    Args:
        kept: share of a mean's logarithm that is kept by a step that takes longer.
    """

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._mean_2 = [0.0, 0.0]

    def record(self, seconds: float, *, drafts: bool) -> None:
        """Count the seconds of a step besides its forward; ``drafts``: whether it had drafts or masks.

        Means fall fast and rise slowly: a first step, prompts and ends of sequences take longer than usual steps, and
        the first step of a kind much longer, if it compiles a kernel.
        """
        before, seconds = self.seconds(drafts=drafts), max(seconds, 1e-9)
        kept = self._kept if seconds > before else 0.5
        self._mean_2[drafts] = before**kept * seconds ** (1 - kept) if before else seconds

    def seconds(self, *, drafts: bool) -> float:
        """Mean seconds of a step besides its forward; those of the other kind while unknown."""
        return self._mean_2[drafts] or self._mean_2[not drafts]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A forward of D decoding sequences, and the times of its step.

    Attributes:
        slots_D: int64, slot of each sequence.
        rows_D: int64, decode rows of each sequence.
        outcome: of the forward.
        emit_D: int64, committed tokens of each sequence that belong to its output.
        ended_D: bool, sequences whose output is complete.
        can_draft: whether the next windows may be written; False while the next forward is in flight.
        prefill_rows: rows of prompts.
        forward_rows: all rows of the forward, weighted: a row that chooses no token costs less than others. None if not
            known.
        kv_tokens: KV entries that the forward read.
        seconds: of the step; None if not known.
        forward_seconds: of the forward alone; None if not known.
    """

    slots_D: IntArray
    rows_D: IntArray
    outcome: StepOutcome
    emit_D: IntArray
    ended_D: BoolArray
    can_draft: bool
    prefill_rows: int
    forward_rows: float | None
    kv_tokens: int
    seconds: float | None
    forward_seconds: float | None
