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
_FIRST_PRICES = (0.0, 0.02, 0.06, 0.15, 0.25, 0.35, 0.45, 0.6)  # where the search starts, commits per row
_FIRST_STEP = 0.4
_ROUNDS = 4
_FEW = 16  # sequences up to which more ways to fill a gap are looked at
_SOME = 64  # sequences up to which windows are then changed one by one, so often at most, while this much is gained
_CLIMBS = 8
_CLIMB_GAIN = 1.001
_FRUGAL = 1.25  # of nearly equal choices the one is taken that this many times the price of a row would make ...
_NEARLY = 0.98  # ... if it is expected to reach this share of the best rate


@dataclass(frozen=True, kw_only=True)
class Load:
    """What else is in the forward.

    Attributes:
        cost: seconds of a forward.
        host_seconds: of a step besides its forward (0 where they overlap).
        kv_tokens: cached tokens of all sequences.
        other_rows: rows that are spent anyway in each forward: those of sequences with fixed windows.
        prefill_rows: rows of prefill in a forward that has any; they come in bursts.
        prefill_share: share of forwards that have any.
        most_rows: the row budget.
    """

    cost: StepCost
    host_seconds: float = 0.0
    kv_tokens: float = 0.0
    other_rows: float = 0.0
    prefill_rows: float = 0.0
    prefill_share: float = 0.0
    most_rows: int = 1 << 30

    def seconds(self, rows: FloatArray, sequences: int) -> FloatArray:
        """Mean seconds of steps of ``rows [N]`` rows besides prefill."""
        plain = self.cost(rows, self.kv_tokens, sequences)
        if self.prefill_share:
            crowded = self.cost(rows + self.prefill_rows, self.kv_tokens, sequences)
            plain = plain + self.prefill_share * (crowded - plain)
        return self.host_seconds + plain

    def slope(self, rows: float, sequences: int) -> float:
        """Mean seconds that one more row costs."""
        plain = self.cost.slope(rows, self.kv_tokens, sequences)
        if not self.prefill_share:
            return plain
        crowded = self.cost.slope(rows + self.prefill_rows, self.kv_tokens, sequences)
        return plain + self.prefill_share * (crowded - plain)


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """Expected commits and rows per forward, ``[S, W + 1]``, by number of masks; 0 masks is autoregressive."""

    commits_SW: FloatArray
    rows_SW: FloatArray

    def first(self, count: int) -> LongRun:
        """The tables of the first ``count`` sequences."""
        return LongRun(commits_SW=self.commits_SW[:count], rows_SW=self.rows_SW[:count])

    def best_at(self, sequence: int, row_price: float, widest: int) -> int:
        """One sequence's best window where a row costs ``row_price`` commits."""
        span = slice(0, widest + 1)
        return int((self.commits_SW[sequence, span] - row_price * self.rows_SW[sequence, span]).argmax())


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
    seconds = float(load.seconds(np.array([rows]), len(masks_S))[0])
    return float(run.commits_SW[own, masks_S].sum()) / seconds, rows


def allot(run: LongRun, widest_S: IntArray, load: Load, previous_S: IntArray | None = None) -> Allotment:
    """The windows with the highest expected commits per second.

    Args:
        run: what each window brings and takes.
        widest_S: int64, the largest window of each sequence (0 .. W).
        load: cost of forwards and what else is in them.
        previous_S: windows in use (-1: none yet); kept unless the best ones are at least 1% better.
    """
    best, rate, rows = _one(run, widest_S, load) if len(widest_S) == 1 else _many(run, widest_S, load)
    count = len(widest_S)
    if previous_S is not None:
        kept_S = np.where(previous_S < 0, best, np.minimum(previous_S, widest_S))
        kept, used = _rate(run, kept_S, load)
        if kept * (1 + _KEEP_GAIN) >= rate and used <= load.most_rows:
            best, rate, rows = kept_S, kept, used
    return Allotment(masks_S=best, rate=rate, row_price=rate * load.slope(rows, count))


def _one(run: LongRun, widest_S: IntArray, load: Load) -> tuple[IntArray, float, float]:
    """A single sequence: every window is looked at."""
    rows = load.other_rows + run.rows_SW[0, : widest_S[0] + 1]
    rates = run.commits_SW[0, : widest_S[0] + 1] / load.seconds(rows, 1)
    rates[1:][rows[1:] > load.most_rows] = -np.inf
    best = int(rates.argmax())
    return np.array([best]), float(rates[best]), float(rows[best])


def _many(run: LongRun, widest_S: IntArray, load: Load) -> tuple[IntArray, float, float]:
    """``(windows, rate, rows)``: by the price of a row."""
    count, width = run.rows_SW.shape
    closed_SW = np.arange(width) > widest_S[:, None]
    best: IntArray = np.zeros(count, dtype=np.int64)
    rate, rows = _rate(run, best, load)
    tried: dict[float, IntArray] = {}
    best_price, step = _FIRST_PRICES[-1], _FIRST_STEP

    def try_price(price: float) -> None:
        nonlocal best, rate, rows, best_price
        tried[price] = masks_S = _at_price(run, closed_SW, price)
        found, used = _rate(run, masks_S, load)
        if found > rate and used <= load.most_rows:
            best, rate, rows, best_price = masks_S, found, used, price

    for price in _FIRST_PRICES:
        try_price(price)
    for _ in range(_ROUNDS):
        try_price(rate * load.slope(rows, count))
        # Where the cost has a kink the right price lies between its slopes: look on both sides of the best one.
        try_price(best_price * (1 + step))
        try_price(best_price / (1 + step))
        step /= 2
    # One price for all leaves a gap where a few rows are left: fill it with the best of the next cheaper windows.
    wider = [m for p, m in sorted(tried.items(), reverse=True) if p < best_price and (m != best).any()]
    for to_S in wider[: 1 if count > _FEW else None]:
        masks_S = _partly(run, best, to_S, load)
        found, used = _rate(run, masks_S, load)
        if found > rate:
            best, rate, rows = masks_S, found, used
    if count <= _SOME:
        best, rate, rows = _climbed(run, best, closed_SW, load)
    # Estimates flatter wide windows a little (their failures come in company): of nearly equal ones the frugal wins.
    masks_S = np.minimum(best, _at_price(run, closed_SW, max(best_price, rate * load.slope(rows, count)) * _FRUGAL))
    found, used = _rate(run, masks_S, load)
    return (masks_S, found, used) if found >= _NEARLY * rate else (best, rate, rows)


def _climbed(run: LongRun, masks_S: IntArray, closed_SW: np.ndarray, load: Load) -> tuple[IntArray, float, float]:
    """``(windows, rate, rows)``: one sequence's window changed after the other, each time the best change of all.

    Near a kink of the cost the best windows are at no common price of a row.
    """
    own = np.arange(len(masks_S))
    masks_S = masks_S.copy()
    rate, rows = _rate(run, masks_S, load)
    for _ in range(_CLIMBS):
        commits_SW = run.commits_SW - run.commits_SW[own, masks_S][:, None] + run.commits_SW[own, masks_S].sum()
        rows_SW = run.rows_SW - run.rows_SW[own, masks_S][:, None] + rows
        rates_SW = commits_SW / load.seconds(rows_SW, len(own))
        rates_SW[closed_SW | (rows_SW > max(load.most_rows, rows))] = -np.inf
        place = int(rates_SW.argmax())
        if rates_SW.flat[place] <= rate * _CLIMB_GAIN:
            break
        masks_S[place // rates_SW.shape[1]] = place % rates_SW.shape[1]
        rate, rows = _rate(run, masks_S, load)
    return masks_S, rate, rows


def _partly(run: LongRun, from_S: IntArray, to_S: IntArray, load: Load) -> IntArray:
    """From one choice of windows towards a wider one, densest steps first, as far as the rate rises."""
    own = np.arange(len(from_S))
    gain_S = run.commits_SW[own, to_S] - run.commits_SW[own, from_S]
    extra_S = run.rows_SW[own, to_S] - run.rows_SW[own, from_S]
    order = np.flatnonzero((to_S != from_S) & (gain_S > 0))
    if not len(order):
        return from_S
    order = order[np.argsort(-gain_S[order] / np.maximum(extra_S[order], 1e-9), kind="stable")]
    rows = load.other_rows + run.rows_SW[own, from_S].sum() + extra_S[order].cumsum()
    commits = run.commits_SW[own, from_S].sum() + gain_S[order].cumsum()
    rates = commits / load.seconds(rows, len(own))
    rates[rows > load.most_rows] = -np.inf
    masks_S = from_S.copy()
    taken = order[: int(rates.argmax()) + 1 if rates.max() > 0 else 0]
    masks_S[taken] = to_S[taken]
    return masks_S


def _at_price(run: LongRun, closed_SW: np.ndarray, price: float) -> IntArray:
    """Each sequence's best window where a row costs ``price`` commits; the narrowest of equal ones."""
    return np.where(closed_SW, -np.inf, run.commits_SW - price * run.rows_SW).argmax(axis=1)
