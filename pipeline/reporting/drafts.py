"""Drafts by source: how many were offered and accepted, and their share of the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.codec import DRAFT_SOURCES
from pipeline.reporting.numbers import count, percent

__all__ = ["Drafts", "describe_drafts", "drafts_by_source"]


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """Drafts of one source.

    Attributes:
        source: ``mask``, ``grammar`` or ``history``.
        offered: rows of forwards that held a draft.
        accepted: drafts that became output.
        tokens: generated tokens, those without a draft included.
    """

    source: str
    offered: int
    accepted: int
    tokens: int

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that became output; None without drafts."""
        return self.accepted / self.offered if self.offered else None

    @property
    def share(self) -> float | None:
        """Share of the output that came from these drafts; None without output."""
        return self.accepted / self.tokens if self.tokens else None

    def describe(self) -> str:
        """Describe them in a few words."""
        return (
            f"{self.source} {count(self.accepted)} of {count(self.offered)} accepted ({percent(self.acceptance)}), "
            f"{percent(self.share)} of the output"
        )


def drafts_by_source(counts: Mapping[str, int | None], tokens: int) -> list[Drafts]:
    """Sort counts by source; a source without drafts is left out.

    Args:
        counts: ``SOURCE_drafts`` and ``SOURCE_drafts_accepted``, as in ``stats``; a count that is missing is 0.
        tokens: generated tokens.
    """
    found = [
        Drafts(source=source, offered=counts.get(f"{source}_drafts") or 0,
               accepted=counts.get(f"{source}_drafts_accepted") or 0, tokens=tokens)
        for source in DRAFT_SOURCES
    ]  # fmt: skip
    return [own for own in found if own.offered]


def describe_drafts(counts: Mapping[str, int | None], tokens: int) -> str:
    """Describe the drafts of every source in a line; empty without drafts."""
    return "; ".join(own.describe() for own in drafts_by_source(counts, tokens))
