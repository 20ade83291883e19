"""How sure a figure is: Wilson's interval of a share, and paired bootstraps of differences. Seeded, so they repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

__all__ = ["Difference", "Interval", "mean_of_shares", "paired_difference", "wilson"]

_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The same questions, answered in two ways.

    Attributes:
        both, first_only, second_only, neither: questions that were answered correctly by whom.
        interval: of the share of the second less that of the first.
    """

    both: int
    first_only: int
    second_only: int
    neither: int
    interval: Interval


def wilson(correct: int, count: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share (E. B. Wilson, 1927); of no trials it is everything.

    Raises:
        ValueError: more correct than there are, a negative number, or a confidence that is none.
    """
    if not 0 <= correct <= count or not 0 < confidence < 1:
        raise ValueError(f"{correct} of {count} at confidence {confidence}: no share and no confidence")
    if count == 0:
        return Interval(value=math.nan, low=0.0, high=1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = correct / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low = 0.0 if correct == 0 else max(0.0, centre - spread)
    high = 1.0 if correct == count else min(1.0, centre + spread)
    return Interval(value=share, low=low, high=high)


def paired_difference(
    both: int, first_only: int, second_only: int, neither: int, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """The difference of two shares over the same questions, by a paired bootstrap (percentiles).

    To draw questions with replacement is to draw the four counts from a multinomial distribution: the interval takes
    memory and time that do not depend on the number of questions.
    """
    counts = np.array([both, first_only, second_only, neither])
    total = int(counts.sum())
    if total == 0:
        interval = Interval(value=math.nan, low=-1.0, high=1.0)
    else:
        drawn = np.random.default_rng(seed).multinomial(total, counts / total, size=_RESAMPLES)
        interval = _percentiles((second_only - first_only) / total, (drawn[:, 2] - drawn[:, 1]) / total, confidence)
    return Difference(both=both, first_only=first_only, second_only=second_only, neither=neither, interval=interval)


def mean_of_shares(shares: Sequence[tuple[int, int]], confidence: float = 0.95, seed: int = 0) -> Interval:
    """The plain mean of the shares of several tasks (``(correct, count)`` each).

    Its interval is simulated from each share's Jeffreys posterior, Beta(correct + 1/2, wrong + 1/2): a bootstrap would
    be certain of tasks that were solved never, or always.
    """
    known = [(correct, count) for correct, count in shares if count]
    if not known:
        return Interval(value=math.nan, low=0.0, high=1.0)
    random = np.random.default_rng(seed)
    drawn = [random.beta(correct + 0.5, count - correct + 0.5, size=_RESAMPLES) for correct, count in known]
    value = float(np.mean([correct / count for correct, count in known]))
    return _percentiles(value, np.mean(drawn, axis=0), confidence)


def _percentiles(value: float, drawn: np.ndarray, confidence: float) -> Interval:
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value=value, low=float(low), high=float(high))
