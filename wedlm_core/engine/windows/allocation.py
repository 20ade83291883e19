"""Allocate: how many masks each sequence forwards, with rows as a budget. Torch-free, O(sequences x window).

:func:`wedlm_core.engine.windows.long_run.long_run` gives each sequence and window its expected commits and rows per
forward. :func:`allocate` picks the windows that maximise expected commits per second, ``sum(commits) /
seconds(sum(rows))``. For any price of a row in commits, the best windows are corners of the sequences' upper hulls of
commits over rows. So all windows grow along their hulls, the steepest first: this chain passes the best windows at
every price, and the allocation is the link of it with the highest rate. A wider window may take fewer rows, where its
drafts stay valid more often: hulls go by rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.windows.long_run import LongRun
from wedlm_core.engine.windows.step_time import FloatArray, Load
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning
from wedlm_core.kernels.cpu.planning import hull_density, order_by_rows

__all__ = ["Allocation", "Rival", "allocate"]

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_MOST_SPARED = 0.999  # share of a forward: none is free
# Rows that masks add, over those without, from which forwards tell what masks bring. Where a forward costs as much up
# to the next tile, a quarter of the sequences may have all masks: twice the rows, and far more seconds.
_TELLING = 0.5


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Windows for the next forwards.

    Attributes:
        masks_S: int64, masks to forward per sequence.
        more: rows that they add, over those without.
        rate: expected commits per second, prefill and the bias included.
        row_price: expected commits that one more row has to bring to be worth its time. Prefill has no part in it:
            prompts take as long whether drafts bring commits earlier or not.
        seconds_per_commit: of forwards without prefill.
        rival: what is best of the other kind; None where there is none.
        lasting_rival: the same of windows that nearly all sequences have who would have them first. A few that double
            the rows tell what rows cost, but they end soon.
    """

    masks_S: IntArray
    more: float
    rate: float
    row_price: float
    seconds_per_commit: float
    rival: Rival | None = None
    lasting_rival: Rival | None = None

    @property
    def has_masks(self) -> bool | None:
        """Whether the windows have masks; None where they hardly do."""
        masks = bool(self.masks_S.any())
        return None if masks and self.more < _TELLING else masks

    @property
    def masks_over_none(self) -> float | None:
        """The logarithm of the rate with masks over the one without; None if unknown, or where masks are few."""
        if self.lasting_rival is None or self.has_masks is None:
            return None
        ratio = math.log(self.rate / self.lasting_rival.rate)
        return ratio if self.has_masks else -ratio


@dataclass(frozen=True, kw_only=True)
class Rival:
    """No masks where some are best, and where none are best the best windows that at least double the rows.

    Attributes:
        masks_S: int64, masks to forward per sequence; for one that is not there what most have.
        rate: expected commits per second.
    """

    masks_S: IntArray
    rate: float


def allocate(
    run: LongRun, widest_S: IntArray, load: Load, weight_S: FloatArray | None = None,
    tuning: PlannerTuning = DEFAULT_TUNING, *, bias: float = 0.0,
) -> Allocation:  # fmt: skip
    """Pick the windows with about the highest expected commits per second, and of those the ones with fewest rows.

    No masks at all are picked where these come close: estimates flatter windows.

    Args:
        run: what each window brings and takes.
        widest_S: int64, the largest window of each sequence (0 .. W).
        load: cost of forwards and what else is in them.
        weight_S: how many sequences each one stands for; 0 gives windows to one that is not there. None: 1 each.
        tuning: constants.
        bias: logarithm of the rate with masks over what is expected of it, where these at least double the rows; of
            fewer masks a share.
    """
    weight_S = np.ones(len(widest_S)) if weight_S is None else weight_S
    count, absent_S = int(weight_S.sum()), weight_S == 0
    chain = _chain(_by_rows(run, widest_S), weight_S, load.other_rows)
    rows_N, commits_N = chain.rows_N, chain.commits_N
    seconds_N = load.seconds(rows_N, count)
    with_prefill_N = seconds_N + load.prefill_seconds(rows_N, commits_N, count)
    spared = min(load.spared_alone, _MOST_SPARED * float(seconds_N[0]))
    seconds_N[0] -= spared
    with_prefill_N[0] -= spared
    more_N = (rows_N - rows_N[0]) / (rows_N[0] - load.other_rows)
    rates_N = commits_N / with_prefill_N * np.exp(bias * np.minimum(1.0, more_N))
    rates_N[1:][(rows_N + load.prefill_rows * commits_N)[1:] > load.most_rows] = -np.inf
    taken = int((rates_N >= tuning.near_optimal * rates_N.max()).argmax())
    if rates_N[0] >= tuning.alone_within * rates_N.max():
        taken = 0

    def rival(among_N: BoolArray) -> Rival | None:
        other = 0 if taken else int(np.where(among_N, rates_N, -np.inf).argmax())
        if other == taken or rates_N[other] <= 0:
            return None
        others_S = chain.masks_at(other)
        if absent_S.any():
            others_S[absent_S] = np.median(others_S[~absent_S])
        return Rival(masks_S=others_S, rate=float(rates_N[other]))

    masks_S, wide_N = chain.masks_at(taken), rows_N >= 2 * rows_N[0]
    seconds_per_commit = float(seconds_N[taken] / commits_N[taken])
    row_price = load.slope(float(rows_N[taken]), count) / seconds_per_commit
    if taken and absent_S.any():
        # Where the next rows are dearer than those that were taken, none of these would be worth the price of those.
        each = float(seconds_N[taken] - seconds_N[0]) / float(rows_N[taken] - rows_N[0])
        masks_S = _with_absent(chain.windows, masks_S, absent_S, min(row_price, each / seconds_per_commit), tuning)
    second = rival(wide_N)
    return Allocation(
        masks_S=masks_S, more=float(more_N[taken]), rate=float(rates_N[taken]), row_price=row_price,
        seconds_per_commit=seconds_per_commit, rival=second,
        lasting_rival=second if taken else rival(wide_N & (chain.opened_N >= 0.9 * chain.opened_N[-1])),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """Windows of each sequence, ``[S, W + 1]``, those with the fewest rows first."""

    masks_SW: IntArray
    commits_SW: FloatArray
    rows_SW: FloatArray


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """All windows from none to the widest, ``[N]`` links; each grows one window along its hull, the steepest first.

    Attributes:
        windows: of each sequence.
        own_N, place_N: int64 ``[N - 1]``, the sequence that grows behind each link, and to which of its windows.
        rows_N, commits_N: of a forward at each link, rows that are spent anyway included.
        opened_N: sequences, by weight, that have masks of those whose first step is half as steep as the steepest.
    """

    windows: _Windows
    own_N: IntArray
    place_N: IntArray
    rows_N: FloatArray
    commits_N: FloatArray
    opened_N: FloatArray

    def masks_at(self, link: int) -> IntArray:
        """``[S]``: masks of each sequence at a link."""
        place_S = np.zeros(len(self.windows.masks_SW), dtype=np.int64)
        np.maximum.at(place_S, self.own_N[:link], self.place_N[:link])
        return self.windows.masks_SW[np.arange(len(place_S)), place_S]


def _chain(windows: _Windows, weight_S: FloatArray, other_rows: float) -> _Chain:
    """Let windows grow along their hulls."""
    density_SW = _hull_density(windows.rows_SW, windows.commits_SW)
    own_N, before_N = np.nonzero(density_SW > 0)  # each place of a window but the last can grow by one
    # A sequence's windows stay in order: along a hull the density falls. Of equal ones the lightest come first.
    order_N = np.lexsort((weight_S[own_N], -density_SW[own_N, before_N]))
    own_N, place_N = own_N[order_N], before_N[order_N] + 1
    rows_N, commits_N = (
        np.append(weight_S @ found_SW[:, 0], weight_S[own_N] * np.diff(found_SW, axis=1)[own_N, place_N - 1]).cumsum()
        for found_SW in (windows.rows_SW, windows.commits_SW)
    )
    opens_N = (place_N == 1) & (density_SW[own_N, 0] >= density_SW[:, 0].max(initial=0.0) / 2)
    return _Chain(
        windows=windows, own_N=own_N, place_N=place_N, rows_N=rows_N + other_rows, commits_N=commits_N,
        opened_N=np.append(0.0, opens_N * weight_S[own_N]).cumsum(),
    )  # fmt: skip


def _with_absent(
    windows: _Windows, masks_S: IntArray, absent_S: BoolArray, row_price: float, tuning: PlannerTuning
) -> IntArray:
    """Masks with those of a sequence that is not there.

    It adds nothing to the rate, so the chain may end just before a step that all its likes took. At the price of a row
    its best window is its own affair; no wider than others' are, who may have left out what brings little.
    """
    as_others_SW = windows.masks_SW <= masks_S[~absent_S].max(initial=0)
    net_SW = np.where(as_others_SW, windows.commits_SW - row_price * windows.rows_SW, -np.inf)
    good_SW = net_SW >= net_SW.max(axis=1, keepdims=True) - (1 - tuning.near_optimal) * windows.commits_SW
    best_S = windows.masks_SW[np.arange(len(masks_S)), good_SW.argmax(axis=1)]
    return np.where(absent_S, np.maximum(masks_S, best_S), masks_S)


def _by_rows(run: LongRun, widest_S: IntArray) -> _Windows:
    """Order windows by their rows; those that are too wide stand last and bring nothing for their rows."""
    masks_SW = np.empty(run.rows_SW.shape, dtype=np.int64)
    rows_SW, commits_SW = np.empty((2, *run.rows_SW.shape))
    order_by_rows(run.rows_SW, run.commits_SW, widest_S, masks_SW, rows_SW, commits_SW)
    return _Windows(masks_SW=masks_SW, commits_SW=commits_SW, rows_SW=rows_SW)


def _hull_density(rows_SW: FloatArray, commits_SW: FloatArray) -> FloatArray:
    """``[S, W]``: slope of the upper hull of commits over rows, from each place to the next; rows never fall."""
    density_SW = np.empty((len(rows_SW), rows_SW.shape[1] - 1))
    hull_density(rows_SW, commits_SW, density_SW)
    return density_SW
