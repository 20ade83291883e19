"""Accuracies and their differences, with confidence intervals by ``scipy.stats``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scipy import stats

from pipeline.evaluation.scorers import OUTCOMES, Outcome


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A share, or a difference of shares, and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Questions by outcome."""

    outcomes: Mapping[Outcome, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))

    @property
    def questions(self) -> int:
        """Number of all questions."""
        return sum(self.outcomes.values())

    @property
    def judged(self) -> int:
        """Number of questions with an expected answer. Failed ones are among them, and count as not correct."""
        return self.questions - self.outcomes["unjudged"]

    def accuracy(self, confidence: float = 0.95) -> Interval | None:
        """Share of correct answers among the judged ones, with Wilson's interval; None if none was judged."""
        if not self.judged:
            return None
        found = stats.binomtest(self.outcomes["correct"], self.judged)
        low, high = found.proportion_ci(confidence, method="wilson")
        return Interval(value=float(found.statistic), low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The same questions answered by two runs.

    Attributes:
        both, only_baseline, only_this, neither: numbers of questions by who answered them correctly.
    """

    both: int
    only_baseline: int
    only_this: int
    neither: int

    def interval(self, confidence: float = 0.95) -> Interval | None:
        """Difference of the accuracies, this run's minus the baseline's, with the interval of a paired t-test.

        None of fewer than two questions.
        """
        count = self.both + self.only_baseline + self.only_this + self.neither
        if count < 2:
            return None
        mean = (self.only_this - self.only_baseline) / count
        variance = ((self.only_this + self.only_baseline) / count - mean**2) / (count - 1)
        if variance == 0:
            return Interval(value=mean, low=mean, high=mean)
        low, high = stats.t.interval(confidence, count - 1, loc=mean, scale=variance**0.5)
        return Interval(value=mean, low=float(low), high=float(high))
