"""Find the numbers of masks with the most commits per second. Pure functions, torch-free.

:func:`long_run` gives each sequence and window its expected commits and rows per forward. :func:`allocate` gives rows
to the sequences that gain most from them. For any price of a row, the best windows are corners of the sequences' upper
hulls of commits over rows. So all windows grow along their hulls, the steepest first: this chain passes the best
windows at every price, and the allocation is its link with the highest rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.config.step_cost import FloatArray
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.engine.drafting.step_time import Load
from wedlm_core.kernels.cpu.planning import hull_density, long_runs

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """Expected commits and rows per forward, float64 ``[S, W + 1]`` by number of masks; 0 masks is autoregressive.

    ``kept_SW`` int64: stale drafts to keep with this number of masks.
    """

    commits_SW: FloatArray
    rows_SW: FloatArray
    kept_SW: IntArray


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Windows for the next forwards.

    Attributes:
        masks_S: int64, masks of each sequence.
        commits_per_second: expected, without prefill, whose time for each commit does not depend on drafts.
        rows: expected rows of a forward.
    """

    masks_S: IntArray
    commits_per_second: float
    rows: float


def long_run(valid_SW: FloatArray, stale_SW: FloatArray, agree_2S: FloatArray, *, bounds: bool = False) -> LongRun:
    """Solve a two-state chain per sequence and window: the drafts of a forward are valid or stale.

    With w masks, valid drafts are the w - 1 proposals after the one that the verifier decided. They stay valid if all
    are accepted and the next first mask agrees with the verifier; otherwise the remaining drafts are stale. Stale
    drafts may be accepted, but the proposals of masks after a wrong draft are of no use. The number of stale drafts to
    keep is the best one in the long run.

    Args:
        valid_SW: float64, probability that valid drafts up to offset 1 .. W are all accepted.
        stale_SW: float64, the same for stale drafts.
        agree_2S: float64, probability that the first mask agrees after all (stale, valid) drafts were accepted.
        bounds: forwards are padded to the most rows that they may have: a head, w drafts and w masks.
    """
    count, width = valid_SW.shape
    commits_SW, rows_SW = np.empty((2, count, width + 1))
    kept_SW = np.empty((count, width + 1), dtype=np.int64)
    long_runs(valid_SW, stale_SW, agree_2S, commits_SW, rows_SW, kept_SW)
    if bounds:
        rows_SW[:] = np.append(1.0, 2.0 * np.arange(1, width + 1) + 1.0)
    return LongRun(commits_SW=commits_SW, rows_SW=rows_SW, kept_SW=kept_SW)


def allocate(
    run: LongRun, widest_S: IntArray, load: Load, constants: DraftingConstants = CONSTANTS
) -> tuple[Allocation, Allocation | None]:  # fmt: skip
    """Find the rates without masks and with the best masks; among about equal masks, the fewest rows win.

    Args:
        run: commits and rows of each window.
        widest_S: int64, most masks of each sequence (0 .. W).
        load: the other work of the step, and its seconds.
        constants: of drafting.

    Returns:
        The allocation without masks, and the best one with masks; None where no sequence may have any.
    """
    count, rows_SW = len(widest_S), run.rows_SW
    # Windows that are too wide bring nothing for their rows.
    commits_SW = np.where(np.arange(rows_SW.shape[1]) <= widest_S[:, None], run.commits_SW, 0.0)
    density_SW = np.empty((count, rows_SW.shape[1] - 1))
    hull_density(rows_SW, commits_SW, density_SW)
    own_N, before_N = np.nonzero(density_SW > 0)  # each step of a sequence to the next corner of its hull
    order_N = np.argsort(-density_SW[own_N, before_N], kind="stable")  # along a hull the density falls
    own_N, masks_N = own_N[order_N], before_N[order_N] + 1
    rows_N, commits_N = (
        np.append(found_SW[:, 0].sum(), np.diff(found_SW, axis=1)[own_N, masks_N - 1]).cumsum()
        for found_SW in (rows_SW, commits_SW)
    )
    rows_N += load.other_rows
    seconds_N = load.seconds(rows_N, count)
    rate_N = commits_N / (seconds_N + load.prefill_seconds(rows_N, commits_N, count))
    rate_N[1:][(rows_N + load.prefill_rows * commits_N)[1:] > load.most_rows] = -np.inf

    def at(link: int) -> Allocation:
        masks_S = np.zeros(count, dtype=np.int64)
        np.maximum.at(masks_S, own_N[:link], masks_N[:link])
        commits_per_second = float(commits_N[link] / seconds_N[link])
        return Allocation(masks_S=masks_S, rows=float(rows_N[link]), commits_per_second=commits_per_second)

    if len(rate_N) < 2 or rate_N[1:].max() <= 0:
        return at(0), None
    return at(0), at(1 + int((rate_N[1:] >= constants.near_best * rate_N[1:].max()).argmax()))
