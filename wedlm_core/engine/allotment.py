"""How many masks and drafts each sequence forwards: rows as a budget. Torch-free, O(sequences x window).

A window of w masks costs 2w rows in the long run (w masks, w - 1 drafts that they became, the head) and
commits ``1 + S_1 + ... + S_(w-1)`` tokens, S_j being the survival of draft j; no window costs one row and
commits one token. The allotment picks the windows that maximise expected commits per second,
``sum(commits) / t(sum(rows), kv)``. Since survival falls with the offset, the best windows for any row price
are those whose marginal commits per row are above it: so it is enough to sort the marginals and to look at
every prefix (Dinkelbach's ratio programme, solved exactly).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.engine.step_cost import StepCost

__all__ = ["Allotment", "Load", "allot", "expected_rate", "window_rows"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_KEEP_GAIN = 0.01  # windows change only for at least this much more: shapes stay stable, noise is not chased


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
class Allotment:
    """Windows for the next forwards.

    Attributes:
        masks_S: int64, masks to forward per sequence; 0 is autoregressive.
        rate: expected commits per second.
        row_price: expected commits that one more row has to bring to be worth its time.
    """

    masks_S: IntArray
    rate: float
    row_price: float


def window_rows(masks_S: IntArray) -> IntArray:
    """Rows of a window in the long run: head, drafts and masks."""
    return np.maximum(1, 2 * masks_S)


def _commits(survival_SW: FloatArray, masks_S: IntArray) -> FloatArray:
    """Expected commits of a forward in the long run, ``[S]``."""
    total_SW = np.concatenate([np.zeros((len(survival_SW), 1)), survival_SW.cumsum(axis=1)], axis=1)
    return 1 + total_SW[np.arange(len(masks_S)), np.maximum(masks_S - 1, 0)]


def expected_rate(survival_SW: FloatArray, masks_S: IntArray, load: Load) -> float:
    """Expected commits per second of these windows."""
    rows = load.other_rows + window_rows(masks_S).sum()
    seconds = load.cost(np.array([rows]), load.kv_tokens, len(masks_S))[0]
    return float(_commits(survival_SW, masks_S).sum() / seconds)


def allot(survival_SW: FloatArray, widest_S: IntArray, load: Load, previous_S: IntArray | None = None) -> Allotment:
    """The windows with the highest expected commits per second.

    Args:
        survival_SW: probability that the drafts up to offset 1 .. W are all accepted; falls along W.
        widest_S: int64, the largest window of each sequence (0 .. W).
        load: cost of forwards and what else is in them.
        previous_S: windows in use (-1: none yet); kept unless the best ones are at least 1% better.
    """
    count = len(survival_SW)
    items = _marginals(survival_SW, widest_S)
    order = np.argsort(-items.density, kind="stable")
    gain = np.concatenate([[0.0], items.gain[order]]).cumsum()
    extra = np.concatenate([[0.0], items.rows[order]]).cumsum()
    rows = load.other_rows + count + extra
    rates = (count + gain) / load.cost(rows, load.kv_tokens, count)
    rates[1:][rows[1:] > load.most_rows] = -np.inf
    best = int(rates.argmax())
    taken = order[:best]
    masks_S = np.zeros(count, dtype=np.int64)
    np.maximum.at(masks_S, items.sequence[taken], items.masks[taken])
    rate, total = float(rates[best]), float(rows[best])
    if previous_S is not None:
        kept_S = np.where(previous_S < 0, masks_S, np.minimum(previous_S, widest_S))
        kept_rows = load.other_rows + float(window_rows(kept_S).sum())
        kept = expected_rate(survival_SW, kept_S, load)
        if kept * (1 + _KEEP_GAIN) >= rate and kept_rows <= load.most_rows:
            masks_S, rate, total = kept_S, kept, kept_rows
    return Allotment(masks_S=masks_S, rate=rate, row_price=rate * load.cost.slope(total, load.kv_tokens, count))


@dataclass(frozen=True, kw_only=True)
class _Items:
    """Steps by which windows can grow, one after the other per sequence, each no denser than the one before."""

    sequence: IntArray
    masks: IntArray  # the window after this step
    gain: FloatArray
    rows: FloatArray
    density: FloatArray


def _marginals(survival_SW: FloatArray, widest_S: IntArray) -> _Items:
    """Concave steps: the upper hull of commits over rows.

    The first mask only repeats the head's slot, so small windows pay late; their steps are joined to the one
    with the best ratio.
    """
    width = survival_SW.shape[1]
    if width < 2 or not (widest_S >= 2).any():
        nothing = np.zeros(0, dtype=np.int64)
        return _Items(sequence=nothing, masks=nothing, gain=np.zeros(0), rows=np.zeros(0), density=np.zeros(0))
    masks_J = np.arange(2, width + 1)  # a window of j masks uses survival 1 .. j - 1
    gain_SJ = survival_SW[:, :-1]
    open_SJ = masks_J <= widest_S[:, None]
    total_SJ = np.where(open_SJ, gain_SJ, 0).cumsum(axis=1)
    ratio_SJ = np.where(open_SJ, total_SJ / (2 * masks_J - 1), -np.inf)
    first_S = ratio_SJ.argmax(axis=1)
    place_J = np.arange(width - 1)
    is_first_SJ = place_J == first_S[:, None]
    density_SJ = np.where(is_first_SJ, ratio_SJ, gain_SJ / 2)
    use_SJ = open_SJ & (place_J >= first_S[:, None])
    sequence, place = np.nonzero(use_SJ)
    first = is_first_SJ[sequence, place]
    return _Items(
        sequence=sequence,
        masks=masks_J[place],
        gain=np.where(first, total_SJ[sequence, place], gain_SJ[sequence, place]),
        rows=np.where(first, 2 * masks_J[place] - 1, 2.0),
        density=density_SJ[sequence, place],
    )
