"""Confidence intervals: Wilson's for a share, the percentile bootstrap over problems for a difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

__all__ = ["Interval", "bootstrap", "wilson"]

_Z = 1.959963984540054
_RESAMPLES = 4000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    def percent(self, *, sign: bool = False) -> str:
        """In percent, for a table."""
        form = "+.1f" if sign else ".1f"
        return f"{100 * self.value:{form}} ({100 * self.low:{form}} to {100 * self.high:{form}})"


def wilson(right: int, count: int) -> Interval:
    """Wilson's score interval of a share (Wilson, JASA 22, 1927)."""
    share = right / count
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return Interval(value=share, low=middle - half, high=middle + half)


def bootstrap(statistic: Callable[[np.ndarray], float], count: int, seed: int = 0) -> Interval:
    """Percentile interval of a statistic of problems, which are drawn with replacement.

    Args:
        statistic: from the numbers of the problems drawn, int64 ``[count]``, to a value.
        count: of problems.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    values = np.array([statistic(rng.integers(0, count, count)) for _ in range(_RESAMPLES)])
    low, high = np.percentile(values, (2.5, 97.5))
    return Interval(value=float(statistic(np.arange(count))), low=float(low), high=float(high))
