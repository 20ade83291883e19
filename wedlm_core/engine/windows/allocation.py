"""How many masks each sequence forwards: rows as a budget. Torch-free, O(sequences x window).

For each sequence and window there is an expected number of commits and of rows per forward in the long run
(:func:`long_run`). The allocation picks the windows that maximise expected commits per second,
``sum(commits) / t(sum(rows), kv)``: a ratio, solved by Dinkelbach's method. For a price of a row in commits,
each sequence's best window is its own affair (``argmax commits - price * rows``); the right price is the
rate that results times what a row costs in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wedlm_core.engine.windows.step_time import Load, StepTimes
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

__all__ = ["Allocation", "LongRun", "allocate", "expected_rate", "long_run", "newcomer"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """Expected commits and rows per forward, ``[S, W + 1]``, by number of masks; 0 masks is autoregressive.

    ``kept_SW``, int64, is how many stale drafts to keep where so many masks are forwarded.
    """

    commits_SW: FloatArray
    rows_SW: FloatArray
    kept_SW: IntArray

    def first(self, count: int) -> LongRun:
        """The tables of the first ``count`` sequences."""
        return LongRun(commits_SW=self.commits_SW[:count], rows_SW=self.rows_SW[:count], kept_SW=self.kept_SW[:count])

    def with_prefill(self, rows_per_commit: float) -> LongRun:
        """Each commit brings a sequence nearer to its end, and with it the rows of the next one's prefill."""
        return replace(self, rows_SW=self.rows_SW + rows_per_commit * self.commits_SW)

    def from_the_start(self, ends_per_commit: float) -> LongRun:
        """The same over whole outputs: the first forward of each has masks and no drafts yet, and commits one token.

        Args:
            ends_per_commit: outputs that end, per commit.
        """
        # Per forward of the long run, an output ends and another starts this often.
        starts_SW = np.minimum(1.0, ends_per_commit * self.commits_SW)
        starts_SW[:, 0] = 0.0
        first_W = 1.0 + np.arange(self.rows_SW.shape[1])
        return replace(
            self,
            commits_SW=(self.commits_SW + starts_SW) / (1 + starts_SW),
            rows_SW=(self.rows_SW + starts_SW * first_W) / (1 + starts_SW),
        )


@dataclass(frozen=True, kw_only=True)
class Allocation:
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
    valid_SW: FloatArray,
    stale_SW: FloatArray,
    agree_2S: FloatArray,
    alive_W: FloatArray,
    row_price: float,
    tuning: PlannerTuning = DEFAULT_TUNING,
) -> LongRun:
    """A two-state chain per sequence and window: the drafts of a forward are valid or stale.

    With w masks, valid drafts are the w - 1 proposals behind the one that the verifier decided. They stay
    valid when all are accepted and the next first mask agrees with the verifier; else what is left is stale.
    So a window that is too wide costs twice: rows, and stale forwards. Stale drafts may bring commits; but
    masks behind one that turns out wrong propose in vain, and the next drafts are stale as well. How many are
    kept is what pays best in the long run; none mends the drafts soonest.

    Args:
        valid_SW: probability that valid drafts up to offset 1 .. W are all accepted.
        stale_SW: the same for stale ones.
        agree_2S: probability that the first mask agrees after all (stale, valid) drafts were accepted.
        alive_W: probability that an output does not end before offset 1 .. W.
        row_price: commits that a row has to bring, by which numbers of stale drafts are compared.
    """
    count, width = valid_SW.shape
    nothing, one = np.zeros((count, 1)), np.ones((count, 1))
    masks_W = np.arange(1, width + 1)
    commits_valid = 1 + np.concatenate([nothing, (valid_SW * alive_W).cumsum(axis=1)], axis=1)[:, :-1, None]
    stay = (np.concatenate([one, valid_SW], axis=1)[:, :-1] * agree_2S[1][:, None])[..., None]
    kept_WK = np.minimum(
        np.where(masks_W == 1, 0, masks_W)[:, None], tuning.kept
    )  # the head decides what one mask proposes
    commits_stale = 1 + np.concatenate([nothing, (stale_SW * alive_W).cumsum(axis=1)], axis=1)[:, kept_WK]
    mend = np.concatenate([one, stale_SW], axis=1)[:, kept_WK] * agree_2S[0][:, None, None]
    share = mend / np.maximum(mend + 1 - stay, 1e-9)  # of forwards whose drafts are valid
    commits = share * commits_valid + (1 - share) * commits_stale
    # A draft that ends the output is the last one, and no masks follow it.
    reach = np.concatenate([[1.0], alive_W])
    drafts = np.concatenate([[0.0], alive_W.cumsum()])
    rows_valid_W = 1 + drafts[:-1] + masks_W * reach[:-1]
    rows_stale_WK = 1 + drafts[kept_WK] + masks_W[:, None] * reach[kept_WK]
    rows = share * rows_valid_W[:, None] + (1 - share) * rows_stale_WK
    best = (commits - row_price * rows).argmax(axis=-1)[..., None]
    commits, rows = (np.take_along_axis(found, best, axis=-1)[..., 0] for found in (commits, rows))
    kept = np.take_along_axis(kept_WK[None], best, axis=-1)[..., 0]
    return LongRun(
        commits_SW=np.concatenate([one, commits], axis=1),
        rows_SW=np.concatenate([one, rows], axis=1),
        kept_SW=np.concatenate([np.zeros((count, 1), dtype=np.int64), kept], axis=1),
    )


def expected_rate(run: LongRun, masks_S: IntArray, load: Load) -> float:
    """Expected commits per second of these windows."""
    own = np.arange(len(masks_S))
    rows = load.other_rows + run.rows_SW[own, masks_S].sum()
    seconds = float(load.seconds(np.array([rows]), len(masks_S))[0])
    if load.plain_host_seconds is not None and not masks_S.any():
        seconds += load.plain_host_seconds - load.host_seconds
    return float(run.commits_SW[own, masks_S].sum() / seconds)


def newcomer(
    run: LongRun, masks_S: IntArray, load: Load, arrivals: float = 1.0, tuning: PlannerTuning = DEFAULT_TUNING
) -> int:
    """The best window of sequences that take the place of others, whichever those are.

    Args:
        run: of the running sequences, and of the newcomers in the last place.
        masks_S: windows of the running ones.
        load: as for :func:`allocate`.
        arrivals: how many come before windows are allocated again. What is best for one may be far from it for many:
            with few masks in the batch rows get cheap.
    """
    count = len(masks_S)
    own = np.arange(count)
    if not tuning.new_window:
        return int(np.median(masks_S))
    if not tuning.arrivals:
        arrivals = 1.0
    many = min(max(1.0, arrivals), float(count))
    stay = 1 - (many - 1) / max(1, count - 1)  # of those whose place the first of them does not take
    commits_S, rows_S = run.commits_SW[own, masks_S], run.rows_SW[own, masks_S]
    commits_SW = stay * (commits_S.sum() - commits_S)[:, None] + many * run.commits_SW[count]
    rows_SW = load.other_rows + stay * (rows_S.sum() - rows_S)[:, None] + many * run.rows_SW[count]
    rate_W = (commits_SW / load.seconds(rows_SW, count)).mean(axis=0)
    usual, best = int(np.median(masks_S)), int(rate_W.argmax())
    # Where it hardly matters they get what most have: batches in which few have masks cost more than they should.
    return usual if (1 - rate_W[usual] / rate_W[best]) * count <= tuning.hardly * many else best


def allocate(
    run: LongRun,
    widest_S: IntArray,
    load: Load,
    previous_S: IntArray | None = None,
    tuning: PlannerTuning = DEFAULT_TUNING,
) -> Allocation:
    """The windows with the highest expected commits per second.

    Args:
        run: what each window brings and takes.
        widest_S: int64, the largest window of each sequence (0 .. W).
        load: cost of forwards and what else is in them.
        previous_S: windows in use (-1: none yet); kept unless the best ones are at least 1% better.
    """
    search = _Search(run, widest_S, load, tuning)
    best = search.one() if len(widest_S) == 1 else search.many()
    if previous_S is not None:
        kept = search.choice(np.where(previous_S < 0, best.masks_S, np.minimum(previous_S, widest_S)))
        if kept.rate * (1 + tuning.keep_gain) >= best.rate and kept.rows <= load.most_rows:
            best = kept
    return Allocation(masks_S=best.masks_S, rate=best.rate, row_price=best.rate * search.times.slope(best.rows))


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """Windows, and what is expected of them: commits per second, and rows."""

    masks_S: IntArray
    rate: float
    rows: float


class _Search:
    """Looks for the best windows of some sequences under a load."""

    def __init__(self, run: LongRun, widest_S: IntArray, load: Load, tuning: PlannerTuning) -> None:
        self._tuning = tuning
        count, width = run.rows_SW.shape
        self._run, self._load, self._widest_S = run, load, widest_S
        self._own = np.arange(count)
        self._closed_SW = np.arange(width) > widest_S[:, None]
        least, most = run.rows_SW[:, 0].sum(), run.rows_SW.max(axis=1).sum()
        self.times = StepTimes(load, count, load.other_rows + max(least, min(most, load.most_rows)))

    def choice(self, masks_S: IntArray) -> _Choice:
        """What is expected of these windows."""
        rows = self._load.other_rows + float(self._run.rows_SW[self._own, masks_S].sum())
        commits = float(self._run.commits_SW[self._own, masks_S].sum())
        return _Choice(masks_S=masks_S, rate=commits / self.times.one(rows), rows=rows)

    def one(self) -> _Choice:
        """A single sequence: every window is looked at."""
        span = slice(0, int(self._widest_S[0]) + 1)
        rows = self._load.other_rows + self._run.rows_SW[0, span]
        rates = self._run.commits_SW[0, span] / self.times.at(rows)
        rates[1:][rows[1:] > self._load.most_rows] = -np.inf
        best = int(rates.argmax())
        return _Choice(masks_S=np.array([best]), rate=float(rates[best]), rows=float(rows[best]))

    def many(self) -> _Choice:
        """By the price of a row."""
        tuning = self._tuning
        few = (
            len(self._own) <= tuning.some
        )  # these are changed one by one in the end, and need no more than a good start
        best, best_price = self.choice(np.zeros(len(self._own), dtype=np.int64)), tuning.first_prices[-1]
        tried: dict[float, IntArray] = {}
        step = tuning.first_step

        def try_price(price: float) -> None:
            nonlocal best, best_price
            tried[price] = masks_S = self._at_price(price)
            found = self.choice(masks_S)
            if found.rate > best.rate and found.rows <= self._load.most_rows:
                best, best_price = found, price

        for price in tuning.first_prices[1:-1:2] if few else tuning.first_prices:
            try_price(price)
        for _ in range(1 if few else tuning.rounds):
            try_price(best.rate * self.times.slope(best.rows))
            # Where the cost has a kink the right price lies between its slopes: look on both sides of the best one.
            try_price(best_price * (1 + step))
            try_price(best_price / (1 + step))
            step /= 2
        # One price for all leaves a gap where a few rows are left: fill it with the next cheaper windows.
        wider = [] if not tuning.fill else [p for p, m in tried.items() if p < best_price and (m != best.masks_S).any()]
        if wider:
            best = max(best, self.choice(self._partly(best.masks_S, tried[max(wider)])), key=lambda choice: choice.rate)
        if few:
            best = self._climbed(best)
        # Estimates flatter wide windows a little (failures come in company): of nearly equal ones the frugal wins.
        price = max(best_price, best.rate * self.times.slope(best.rows)) * tuning.frugal
        frugal = self.choice(np.minimum(best.masks_S, self._at_price(price)))
        return frugal if frugal.rate >= tuning.nearly * best.rate else best

    def _climbed(self, best: _Choice) -> _Choice:
        """One sequence's window changed after the other, each time the best change of all.

        Near a kink of the cost the best windows are at no common price of a row.
        """
        run, own, tuning = self._run, self._own, self._tuning
        for _ in range(tuning.climbs):
            now_S = best.masks_S
            commits_SW = run.commits_SW - run.commits_SW[own, now_S][:, None] + run.commits_SW[own, now_S].sum()
            rows_SW = run.rows_SW - run.rows_SW[own, now_S][:, None] + best.rows
            rates_SW = commits_SW / self.times.at(rows_SW)
            rates_SW[self._closed_SW | (rows_SW > max(self._load.most_rows, best.rows))] = -np.inf
            place = int(rates_SW.argmax())
            if rates_SW.flat[place] <= best.rate * tuning.climb_gain:
                break
            masks_S = now_S.copy()
            masks_S[place // rates_SW.shape[1]] = place % rates_SW.shape[1]
            best = self.choice(masks_S)
        return best

    def _partly(self, from_S: IntArray, to_S: IntArray) -> IntArray:
        """From one choice of windows towards a wider one, densest steps first, as far as the rate rises."""
        run, own = self._run, self._own
        gain_S = run.commits_SW[own, to_S] - run.commits_SW[own, from_S]
        extra_S = run.rows_SW[own, to_S] - run.rows_SW[own, from_S]
        order = np.flatnonzero((to_S != from_S) & (gain_S > 0))
        if not len(order):
            return from_S
        order = order[np.argsort(-gain_S[order] / np.maximum(extra_S[order], 1e-9), kind="stable")]
        rows = self._load.other_rows + run.rows_SW[own, from_S].sum() + extra_S[order].cumsum()
        commits = run.commits_SW[own, from_S].sum() + gain_S[order].cumsum()
        rates = commits / self.times.at(rows)
        rates[rows > self._load.most_rows] = -np.inf
        masks_S = from_S.copy()
        taken = order[: int(rates.argmax()) + 1 if rates.max() > 0 else 0]
        masks_S[taken] = to_S[taken]
        return masks_S

    def _at_price(self, price: float) -> IntArray:
        """Each sequence's best window where a row costs ``price`` commits; the narrowest of equal ones."""
        return np.where(self._closed_SW, -np.inf, self._run.commits_SW - price * self._run.rows_SW).argmax(axis=1)
