"""Rows for drafts: which are worth their time, at what commits bring in the long run.

What is best for a whole run is to take each row whose commits come earlier by more than its time: by renewal theory
(Ross, *Stochastic Processes*, chapter 3) the plan with the highest commits per second is the one that maximises
``commits - rate * seconds`` of each forward, where ``rate`` is that of the run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.kernels.cpu.planning import seconds_at

__all__ = ["Bought", "Prices", "buy_rows", "least_row_price", "mean_row_price", "step_seconds"]

Array = np.ndarray[Any, np.dtype[Any]]


class Prices(NamedTuple):
    """What steps cost and commits are worth, as of the planner's last plan.

    Attributes:
        knots: float64 ``[K]``, rows of the table of forwards, ascending.
        seconds: float64 ``[K]``, of these forwards.
        quantum: rows are rounded up to a multiple of it.
        fixed: seconds of each step besides its rows.
        per_row: seconds of each row besides those of the table.
        spared_alone: seconds less of a step without drafts.
        sequences: that the plan was made for; a step with no more rows than these has no drafts.
        most_rows: the row budget.
        near_optimal: share of the best at which fewer rows are taken.
        seconds_per_commit: in the long run, without drafts from history.
    """

    knots: Array
    seconds: Array
    quantum: float
    fixed: float
    per_row: float
    spared_alone: float
    sequences: float
    most_rows: float
    near_optimal: float
    seconds_per_commit: float


class Bought(NamedTuple):
    """Rows that were bought: drafts at least this likely, and commits that one more row would have to bring."""

    threshold: float
    row_price: float


@kernel
def step_seconds(prices, rows, drafts):  # type: ignore[no-untyped-def]
    """Seconds of a step of so many rows, with drafts or without."""
    found = seconds_at(rows, prices.knots, prices.seconds, prices.quantum, prices.fixed, prices.per_row)
    return found if drafts else found - prices.spared_alone


@kernel
def mean_row_price(prices, rows, count):  # type: ignore[no-untyped-def]
    """Commits that each of ``count`` more rows has to bring, at the seconds that one takes in the long run.

    0 if these are not known. Other arguments as for :func:`least_row_price`.
    """
    if prices.seconds_per_commit <= 0.0:
        return 0.0
    more = step_seconds(prices, rows + count, True) - step_seconds(prices, rows, rows > prices.sequences)
    return max(0.0, more) / count / prices.seconds_per_commit


@kernel
def least_row_price(prices, rows, most):  # type: ignore[no-untyped-def]
    """Commits that each of some rows has to bring, as many of them (1, 2, 4 ... ``most``) as come cheapest.

    What the next row alone costs says little: where two knots of the table are near each other, what is not known of
    either decides it, and a forward of a few rows more may be dear where one of many more is not.

    Args:
        prices: :class:`Prices`.
        rows: of the forward without them.
        most: rows, at least 1.

    Returns:
        Commits, as of :func:`mean_row_price`.
    """
    count, least = 1, np.inf
    while True:
        least = min(least, mean_row_price(prices, rows, count))
        if count >= most:
            return least
        count = min(2 * count, most)


@kernel
def buy_rows(prices, acceptance, commits, rows, spare):  # type: ignore[no-untyped-def]
    """Buy as many rows, the likeliest first, as are worth most; of about equal choices the one with fewest rows.

    A commit is worth the seconds that it takes in the long run, or in this forward where that is better: with drafts
    from history in all forwards, the long run is better than the planner knows.

    Args:
        prices: :class:`Prices`.
        acceptance: float64 ``[G, D]``, probability that each draft is committed, 0 for none; it falls along a sequence.
        commits: expected of the next forward without them.
        rows: of that forward.
        spare: KV entries that are free.

    Returns:
        :class:`Bought`.
    """
    likely = acceptance.ravel()[acceptance.ravel() > 0.0]
    likely.sort()
    most = max(0, min(len(likely), int(min(prices.most_rows - rows, spare))))
    wide = rows > prices.sequences  # some sequence has drafts already
    total, best = commits, 0.0
    for count in range(most + 1):  # the best rate of this forward
        total += likely[len(likely) - count] if count else 0.0
        best = max(best, total / step_seconds(prices, rows + count, wide or count > 0))
    rate, local = best, True
    if prices.seconds_per_commit > 0.0 and rate * prices.seconds_per_commit < 1.0:
        rate, local = 1.0 / prices.seconds_per_commit, False
    total, bought, most_worth = commits, 0, -np.inf
    for count in range(most + 1):
        total += likely[len(likely) - count] if count else 0.0
        seconds = step_seconds(prices, rows + count, wide or count > 0)
        if local and total >= prices.near_optimal * best * seconds:
            bought = count
            break
        worth = total - rate * seconds
        if worth > most_worth + (1.0 - prices.near_optimal) * total:
            bought, most_worth = count, worth
    return Bought(likely[len(likely) - bought] if bought else np.inf, rate * _slope(prices, rows + bought))


@kernel
def _slope(prices, rows):  # type: ignore[no-untyped-def]
    """Seconds that one more row costs (:meth:`wedlm_core.engine.windows.step_time.Load.slope`)."""
    step = max(8.0, rows / 8.0, prices.quantum)
    here = seconds_at(rows, prices.knots, prices.seconds, prices.quantum, prices.fixed, prices.per_row)
    there = seconds_at(rows + step, prices.knots, prices.seconds, prices.quantum, prices.fixed, prices.per_row)
    return (there - here) / step
