"""How long outputs of a job are, as those that ended last tell. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.windows.tuning import PlannerTuning

__all__ = ["EndedOutputs", "OutputLengths"]

_OUTGROWN = 2  # times the longest known output at which one that runs is of another job


@dataclass(frozen=True, kw_only=True)
class OutputLengths:
    """Tokens of an output on average, and how far apart equally likely lengths lie (0: all outputs are as long)."""

    tokens: float
    spread: float = math.inf


class EndedOutputs:
    """Lengths of the outputs that ended last."""

    def __init__(self, tuning: PlannerTuning) -> None:
        self._least = tuning.lengths_trusted
        self._length_N = np.zeros(tuning.lengths_kept)
        self._count = 0

    def record(self, length_N: np.ndarray) -> None:
        """Take in outputs that ended, in any order."""
        size = len(self._length_N)
        for length in length_N[-size:].tolist():
            self._length_N[self._count % size] = length
            self._count += 1

    def outgrown(self, generated_S: np.ndarray) -> bool:
        """Forget the outputs that ended if most of those that run are much longer by now: they are of another job."""
        longest = float(self._length_N.max())
        if not self._count or 2 * np.count_nonzero(generated_S > _OUTGROWN * longest) <= len(generated_S):
            return False
        self._length_N[:], self._count = 0.0, 0
        return True

    def lengths(self, otherwise: float) -> OutputLengths:
        """What they tell; while few have ended, ``otherwise`` is the mean and nothing is known of the spread."""
        if self._count < self._least:
            return OutputLengths(tokens=otherwise)
        known_N = self._length_N[: self._count]
        # Lengths that are equally likely within a range deviate from their mean by a share of it.
        return OutputLengths(tokens=float(known_N.mean()), spread=math.sqrt(12) * float(known_N.std()))
