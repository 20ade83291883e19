"""What one task gave in one setting: counts that add up, question by question, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.codec import prefix_cacheability, tokens_per_forward
from pipeline.evaluation.intervals import Difference, Interval, wilson

__all__ = ["OUTCOMES", "Comparison", "Counts", "Result"]

OUTCOMES = ("correct", "wrong", "no answer", "failed", "unjudged")
"""How a question may end. ``failed``: nothing was generated; ``unjudged``: the data set has no answer to it."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Questions by outcome, and what was generated for them."""

    outcomes: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
    forwards: int = 0
    rows: int = 0
    truncated: int = 0

    def plus(self, outcome: str, *, tokens: int, forwards: int, rows: int, truncated: bool) -> Counts:
        """With one more question."""
        outcomes = {**self.outcomes, outcome: self.outcomes.get(outcome, 0) + 1}
        return replace(
            self,
            outcomes=outcomes,
            tokens=self.tokens + tokens,
            forwards=self.forwards + forwards,
            rows=self.rows + rows,
            truncated=self.truncated + truncated,
        )

    def count(self, outcome: str) -> int:
        """Questions that ended so."""
        return self.outcomes.get(outcome, 0)

    @property
    def questions(self) -> int:
        """All of them."""
        return sum(self.outcomes.values())

    @property
    def judged(self) -> int:
        """Those that count: all but those the data set has no answer to. Failed ones count as not correct."""
        return self.questions - self.count("unjudged")

    def accuracy(self, confidence: float) -> Interval:
        """Share of correct answers among the judged, with Wilson's interval."""
        return wilson(self.count("correct"), self.judged, confidence)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per forward over all questions; see ``wedlm_core.statistics``."""
        return tokens_per_forward(self.tokens, self.forwards)

    @property
    def prefix_cacheability(self) -> float:
        """p_cache over all questions; see ``wedlm_core.statistics``."""
        return prefix_cacheability(self.tokens, self.rows)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A setting against the baseline, over the same questions.

    Attributes:
        difference: of the accuracies.
        equal_tokens: questions with the very same tokens.
        questions: that both generated for.
    """

    difference: Difference
    equal_tokens: int
    questions: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """A task in a setting.

    Attributes:
        counts: of all questions.
        groups: of each part of the data set, where it has parts.
        tokens_per_second: of the run, start of the actors left out; None where it was not generated in one go.
        comparison: with the baseline; None of the baseline itself.
    """

    task: str
    setting: str
    counts: Counts
    groups: Mapping[str, Counts] = field(default_factory=dict)
    tokens_per_second: float | None = None
    comparison: Comparison | None = None
