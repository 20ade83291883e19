"""The constants of history drafts: what each is, its unit, and why it has this value. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_TUNING", "HistoryTuning"]


@dataclass(frozen=True, kw_only=True)
class HistoryTuning:
    """Constants of :class:`wedlm_core.engine.history.History`, one a line."""

    # Matches
    orders: tuple[int, ...] = (1, 3, 8)  # tokens, ascending; n-grams that are indexed: each costs 8 bytes per token
    walk: int = 32  # occurrences looked at per order, latest first: more hardly change the vote
    longest: int = 32  # tokens of a match that count: places that share as many vote with equal weight
    # Proposals
    least_acceptance: float = 0.05  # below it a draft is not worth even the cheapest row
    # Learning
    cell_kept: float = 0.998  # share of a class's counts kept per test: about 500 tests count
    cell_prior: float = 8.0  # tests; weight of the smoothed share of votes before anything was tested
    slot_kept: float = 0.95  # share of a sequence's counts kept per test: about 20 tests count
    slot_prior: float = 8.0  # failures; weight of the job in a sequence's ratio of failures


DEFAULT_TUNING = HistoryTuning()
