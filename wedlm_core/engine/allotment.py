"""How many masks each sequence forwards: rows as a budget. Torch-free, O(sequences x window).

For each sequence and window there is an expected number of commits and of rows per forward in the long run
(:func:`long_run`). The allotment picks the windows that maximise expected commits per second,
``sum(commits) / t(sum(rows), kv)``: a ratio, solved by Dinkelbach's method. For a price of a row in commits,
each sequence's best window is its own affair (``argmax commits - price * rows``); the right price is the
rate that results times what a row costs in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.step_cost import StepCost

__all__ = ["Allotment", "Load", "LongRun", "allot", "expected_rate", "long_run"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_KEEP_GAIN = 0.01  # windows change only for at least this much more: shapes stay stable, noise is not chased
_FIRST_PRICES = (0.0, 0.02, 0.08, 0.2, 0.35, 0.6)  # where the search for the price starts, commits per row
_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else is in the forward.

    Attributes:
        cost: seconds of a forward.
        kv_tokens: cached tokens of all sequences.
        other_rows: rows that are spent anyway: prefill chunks, sequences with fixed windows.
        most_rows: the row budget.
    """

    cost: StepCost
    kv_tokens: float = 0.0
    other_rows: float = 0.0
    most_rows: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """Expected commits and rows per forward, ``[S, W + 1]``, by number of masks; 0 masks is autoregressive."""

    commits_SW: FloatArray
    rows_SW: FloatArray


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """Windows for the next forwards.

    Attributes:
        masks_S: int64, masks to forward per sequence.
        rate: expected commits per second.
        row_price: expected commits that one more row has to bring to be worth its time.
    """

    masks_S: IntArray
    rate: float
    row_price: float


def long_run(
    intact_SW: FloatArray, broken_SW: FloatArray, agree_2S: FloatArray, keep_broken_S: IntArray, alive_SW: FloatArray
) -> LongRun:
    """A two-state chain per sequence and window: the drafts of a forward are intact or broken.

    With w masks, intact drafts are the w - 1 proposals behind the one that the verifier decided. They stay
    intact when all are accepted and the next first mask agrees with the verifier; else what is left is broken.
    So a window that is too wide costs twice: rows, and broken forwards.

    Args:
        intact_SW: probability that intact drafts up to offset 1 .. W are all accepted.
        broken_SW: the same for broken ones.
        agree_2S: probability that the first mask agrees after all (broken, intact) drafts were accepted.
        keep_broken_S: broken drafts kept at most.
        alive_SW: probability that the output does not end before offset 1 .. W.
    """
    count, width = intact_SW.shape
    nothing, one = np.zeros((count, 1)), np.ones((count, 1))
    masks_W = np.arange(1, width + 1)
    commits_intact = 1 + np.concatenate([nothing, (intact_SW * alive_SW).cumsum(axis=1)], axis=1)[:, :-1]
    stay = np.concatenate([one, intact_SW], axis=1)[:, :-1] * agree_2S[1][:, None]
    kept = np.minimum(masks_W, keep_broken_S[:, None])
    own = np.arange(count)[:, None]
    commits_broken = 1 + np.concatenate([nothing, (broken_SW * alive_SW).cumsum(axis=1)], axis=1)[own, kept]
    mend = np.concatenate([one, broken_SW], axis=1)[own, kept] * agree_2S[0][:, None]
    share = mend / np.maximum(mend + 1 - stay, 1e-9)  # of forwards whose drafts are intact
    commits = share * commits_intact + (1 - share) * commits_broken
    rows = share * 2 * masks_W + (1 - share) * (1 + kept + masks_W)
    return LongRun(commits_SW=np.concatenate([one, commits], axis=1), rows_SW=np.concatenate([one, rows], axis=1))


def expected_rate(run: LongRun, masks_S: IntArray, load: Load) -> float:
    """Expected commits per second of these windows."""
    return _rate(run, masks_S, load)[0]


def _rate(run: LongRun, masks_S: IntArray, load: Load) -> tuple[float, float]:
    """``(commits per second, rows)``."""
    own = np.arange(len(masks_S))
    rows = load.other_rows + float(run.rows_SW[own, masks_S].sum())
    seconds = float(load.cost(np.array([rows]), load.kv_tokens, len(masks_S))[0])
    return float(run.commits_SW[own, masks_S].sum()) / seconds, rows


def allot(run: LongRun, widest_S: IntArray, load: Load, previous_S: IntArray | None = None) -> Allotment:
    """The windows with the highest expected commits per second.

    Args:
        run: what each window brings and takes.
        widest_S: int64, the largest window of each sequence (0 .. W).
        load: cost of forwards and what else is in them.
        previous_S: windows in use (-1: none yet); kept unless the best ones are at least 1% better.
    """
    count, width = run.rows_SW.shape
    closed_SW = np.arange(width) > widest_S[:, None]
    best: IntArray = np.zeros(count, dtype=np.int64)
    rate, rows = _rate(run, best, load)
    for price in _FIRST_PRICES:
        masks_S = _at_price(run, closed_SW, price)
        found, used = _rate(run, masks_S, load)
        if found > rate and used <= load.most_rows:
            best, rate, rows = masks_S, found, used
    for _ in range(_ROUNDS):
        masks_S = _at_price(run, closed_SW, rate * load.cost.slope(rows, load.kv_tokens, count))
        found, used = _rate(run, masks_S, load)
        if found <= rate or used > load.most_rows:
            break
        best, rate, rows = masks_S, found, used
    if previous_S is not None:
        kept_S = np.where(previous_S < 0, best, np.minimum(previous_S, widest_S))
        kept, used = _rate(run, kept_S, load)
        if kept * (1 + _KEEP_GAIN) >= rate and used <= load.most_rows:
            best, rate, rows = kept_S, kept, used
    return Allotment(masks_S=best, rate=rate, row_price=rate * load.cost.slope(rows, load.kv_tokens, count))


def _at_price(run: LongRun, closed_SW: np.ndarray, price: float) -> IntArray:
    """Each sequence's best window where a row costs ``price`` commits; the narrowest of equal ones."""
    return np.where(closed_SW, -np.inf, run.commits_SW - price * run.rows_SW).argmax(axis=1)
