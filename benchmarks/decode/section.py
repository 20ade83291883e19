"""A section of the decoding benchmark: its tables, and what was asked of its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.common import table
from benchmarks.decode.passes import Budget

__all__ = ["Goal", "Section", "Settings", "goals_table", "lowest"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line fixes.

    Attributes:
        threads: torch threads.
        budget: of each race.
        models, batches: to measure.
        gsm8k: path of the JSON Lines file.
        quick: small counts, to try the scripts.
    """

    threads: int
    budget: Budget
    models: Sequence[str]
    batches: Sequence[int]
    gsm8k: str
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure that was asked for.

    Attributes:
        claim: what.
        wanted: the least (``at_most``: the most) that counts as reached.
        found: the figure.
        where: the point it comes from.
    """

    claim: str
    wanted: float
    found: float
    where: str = ""
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether it is."""
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


@dataclass(frozen=True, kw_only=True)
class Section:
    """Title, Markdown body, goals."""

    title: str
    body: str
    goals: Sequence[Goal] = field(default_factory=tuple)


def lowest(claim: str, wanted: float, points: Iterable[tuple[float, str]]) -> list[Goal]:
    """The goal that every point reaches ``wanted``, told by the lowest; none where there are no points."""
    listed = list(points)
    if not listed:
        return []
    found, where = min(listed)
    return [Goal(claim=claim, wanted=wanted, found=found, where=where)]


def goals_table(goals: Sequence[Goal]) -> str:
    """One line per goal."""
    rows = [
        (g.claim, f"{'at most' if g.at_most else 'at least'} {g.wanted:g}", f"{g.found:.3g}", g.where,
         "yes" if g.reached else "**no**")
        for g in goals
    ]  # fmt: skip
    return table(("what", "goal", "measured", "at", "reached"), rows)
