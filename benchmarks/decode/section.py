"""Section and Goal: the result of a part of the decoding benchmark, and the figures that it should reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.common import table
from benchmarks.decode.passes import Budget


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings from the command line.

    Attributes:
        threads: torch threads.
        budget: length of each race.
        models, batches: models and batch sizes to measure.
        quick: use small counts, to test the scripts.
    """

    threads: int
    budget: Budget
    models: Sequence[str]
    batches: Sequence[int]
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure and the value that it should reach.

    Attributes:
        claim: of the measurement.
        wanted: the least (``at_most``: the most) value that reaches the goal.
        found: the measured figure.
        where: the point where it was measured.
    """

    claim: str
    wanted: float
    found: float
    where: str = ""
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the goal is reached."""
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the result: title, Markdown body and goals."""

    title: str
    body: str
    goals: Sequence[Goal] = field(default_factory=tuple)


def lowest(claim: str, wanted: float, points: Iterable[tuple[float, str]]) -> list[Goal]:
    """The goal that every point reaches ``wanted``, decided by the lowest point. Empty if there are no points."""
    listed = list(points)
    if not listed:
        return []
    found, where = min(listed)
    return [Goal(claim=claim, wanted=wanted, found=found, where=where)]


def goals_table(goals: Sequence[Goal]) -> str:
    """A Markdown table with one line per goal."""
    rows = [
        (g.claim, f"{'at most' if g.at_most else 'at least'} {g.wanted:g}", f"{g.found:.3g}", g.where,
         "yes" if g.reached else "**no**")
        for g in goals
    ]  # fmt: skip
    return table(("what", "goal", "measured", "at", "reached"), rows)
