"""A plan of windows in arrays: the readable form of :mod:`wedlm_core.kernels.cpu.planning`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from wedlm_core.engine.windows.acceptance import Acceptance
from wedlm_core.engine.windows.allocation import _Windows
from wedlm_core.engine.windows.long_run import LongRun
from wedlm_core.engine.windows.output_lengths import OutputLengths
from wedlm_core.engine.windows.step_time import Load

__all__ = [
    "by_kind",
    "forward_seconds",
    "hull_density",
    "job_hazard",
    "long_run",
    "windows_by_rows",
    "with_ends",
    "with_forced",
]

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def forward_seconds(load: Load, rows: FloatArray, sequences: int) -> FloatArray:
    """Seconds of steps of these rows in the mean: they vary, so padding costs half a quantum more."""
    place = rows / load.cost.quantum + 0.5
    below = np.floor(place)
    low, high = (load.cost((below + up) * load.cost.quantum, load.kv_tokens, sequences) for up in (0, 1))
    return load.host_seconds + low + (place - below) * (high - low)


def job_hazard(acceptance: Acceptance, family: int = 0) -> FloatArray:
    """``[2, W]`` (stale, valid): hazard over the whole job, of one family.

    An offset not seen yet is like the one before; stale drafts are like valid ones until they show otherwise.
    """
    weight = acceptance._tuning.prior_job
    (stale_tested, stale_right), (tested, right) = acceptance._job[family, :, :, :-1].tolist()
    valid, before = [], acceptance._tuning.prior_hazard
    for trials, hits in zip(tested, right, strict=True):
        before = (hits + weight * before) / (trials + weight)
        valid.append(before)
    stale, ratio = [], 1.0
    for trials, hits, other in zip(stale_tested, stale_right, valid, strict=True):
        hazard = (hits + weight * min(1.0, ratio * other)) / (trials + weight)
        ratio = hazard / max(other, 1e-9)
        stale.append(hazard)
    return np.array([stale, valid])


def by_kind(acceptance: Acceptance, slots_S: IntArray) -> FloatArray:
    """``[2, S, W]`` (stale, valid): probability that the drafts up to each offset are all accepted."""
    family_S = acceptance._family_S[slots_S]
    job_fails = np.empty((2, len(slots_S), len(acceptance._offset_W)))
    for family in set(family_S.tolist()):
        job_fails[:, family_S == family] = 1 - job_hazard(acceptance, family)[:, None]
    tested, right = acceptance._counts[:, slots_S, :, :-1].transpose(2, 0, 1, 3)
    # A sequence fails in proportion to the job's profile over offsets (proportional hazards) ...
    weight = acceptance._tuning.prior_failures
    failed, expected = (tested - right).sum(axis=-1), (tested * job_fails).sum(axis=-1)
    ratio = (failed + weight) / (expected + weight)
    prior = 1 - np.minimum(1.0, job_fails * ratio[..., None])
    # ... but for offsets that it has shown otherwise often enough.
    weight = acceptance._tuning.prior_sequence
    return ((right + weight * prior) / (tested + weight)).cumprod(axis=-1)


def long_run(valid_SW: FloatArray, stale_SW: FloatArray, agree_2S: FloatArray, row_price: float) -> LongRun:
    """See :func:`wedlm_core.engine.windows.long_run.long_run`."""
    count, width = valid_SW.shape
    one_S1, all_S1 = np.ones((count, 1)), np.full((count, 1), width)
    masks_W1 = np.arange(1, width + 1)[:, None]
    candidates_K = np.append(0, 2 ** np.arange(width.bit_length()))
    kept_WK = np.minimum(np.where(masks_W1 == 1, 0, masks_W1), candidates_K)  # the verifier decides a single mask
    # By number of drafts, 0 .. W: probability that all are accepted, and expected commits.
    all_valid_SW, all_stale_SW = (np.concatenate([one_S1, found], axis=1) for found in (valid_SW, stale_SW))
    valid_commits_SW, stale_commits_SW = all_valid_SW.cumsum(axis=1), all_stale_SW.cumsum(axis=1)

    stay_SW1 = (all_valid_SW[:, :-1] * agree_2S[1][:, None])[..., None]
    recover_SWK = all_stale_SW[:, kept_WK] * agree_2S[0][:, None, None]
    share_SWK = recover_SWK / np.maximum(recover_SWK + 1 - stay_SW1, 1e-9)  # of forwards whose drafts are valid
    commits_SWK = share_SWK * valid_commits_SW[:, :-1, None] + (1 - share_SWK) * stale_commits_SW[:, kept_WK]
    rows_SWK = share_SWK * (2 * masks_W1) + (1 - share_SWK) * (1 + kept_WK + masks_W1)

    best_SW1 = (commits_SWK - row_price * rows_SWK).argmax(axis=-1)[..., None]
    kept_SW, commits_SW, rows_SW = (
        np.take_along_axis(found, best_SW1, axis=-1)[..., 0] for found in (kept_WK[None], commits_SWK, rows_SWK)
    )
    return LongRun(
        commits_SW=np.concatenate([one_S1, commits_SW], axis=1),
        rows_SW=np.concatenate([one_S1, rows_SW], axis=1),
        kept_SW=np.concatenate([all_S1, kept_SW], axis=1),
        sure_SW=np.concatenate([np.zeros((count, 1)), stay_SW1[..., 0]], axis=1),
    )


def with_forced(run: LongRun, per_commit_S: FloatArray, row_share: float = 1.0) -> LongRun:
    """Add the tokens that a grammar forces behind those of a forward, whatever the window: a commit and a row each.

    ``row_share`` is what such a row costs of another.
    """
    more_S1 = per_commit_S[:, None]
    return replace(run, commits_SW=run.commits_SW + more_S1, rows_SW=run.rows_SW + row_share * more_S1)


def with_ends(run: LongRun, outputs: OutputLengths) -> LongRun:
    """Count that outputs begin and end.

    Each begins with a forward of masks alone, whose rows bring what one row brings. The last forward takes the
    drafts up to the end only, and has no masks where the end is among these.
    """
    masks_W = np.arange(run.rows_SW.shape[1])
    first_W = np.minimum(masks_W, 1)
    behind_SW = np.maximum(outputs.tokens - first_W * run.commits_SW[:, :1], 0)  # tokens that follow
    ends = _ends_behind(run, behind_SW, outputs.spread)
    forwards_SW = np.maximum(first_W + ends.forwards_SW, 1)
    masked_SW = first_W + ends.forwards_SW - ends.drafted_SW  # forwards with masks
    whole_SW = run.rows_SW - masks_W  # rows of a forward, without masks
    # A last forward that brings a part of what others do takes that part of their rows, and its head.
    verified_SW = behind_SW / run.commits_SW * whole_SW + ends.drafted_SW
    rows_SW = first_W * run.rows_SW[:, :1] + verified_SW + masked_SW * masks_W
    return replace(run, commits_SW=outputs.tokens / forwards_SW, rows_SW=rows_SW / forwards_SW)


@dataclass(frozen=True, kw_only=True)
class _Ends:
    """Forwards behind the first one of an output, and how likely the end is among the last one's drafts."""

    forwards_SW: FloatArray
    drafted_SW: FloatArray


def _ends_behind(run: LongRun, behind_SW: FloatArray, spread: float) -> _Ends:
    """How outputs end so many tokens behind their first forward, on average, whose lengths are spread so far.

    They end anywhere in a window; at a known place where they are equally long and all drafts are right.
    """
    commits_SW, masks_W = run.commits_SW, np.arange(behind_SW.shape[1])
    first_W = np.minimum(masks_W, 1)
    anywhere_SW = first_W * (1 - 1 / commits_SW)  # all that a forward commits is drafted but the verifier's token
    mean_SW = np.maximum(behind_SW / commits_SW + anywhere_SW / 2, first_W)
    # At a known place the last forward may have room to spare. A wrong draft takes up that room, or a forward more.
    most_SW = np.maximum(commits_SW, commits_SW[:, :1] - 1 + masks_W)
    least_SW = np.ceil(behind_SW / most_SW - 1e-9)
    spare_SW = least_SW - behind_SW / most_SW
    wrong_SW = np.maximum(mean_SW, least_SW + 1 - spare_SW)
    right_SW = run.sure_SW**least_SW
    alike_SW = first_W * np.clip(1 - spread / commits_SW, 0, 1)
    forwards_SW = mean_SW + alike_SW * (wrong_SW + right_SW * (least_SW - wrong_SW) - mean_SW)
    drafted_SW = anywhere_SW + alike_SW * right_SW * (np.clip(spare_SW * most_SW, 0, 1) - anywhere_SW)
    goes_on_SW = behind_SW > 0
    return _Ends(forwards_SW=np.where(goes_on_SW, forwards_SW, 0), drafted_SW=np.where(goes_on_SW, drafted_SW, 0))


def windows_by_rows(run: LongRun, widest_S: IntArray) -> _Windows:
    """Order windows by their rows; those that are too wide stand last and bring nothing for their rows."""
    fits_SW = np.arange(run.rows_SW.shape[1]) <= widest_S[:, None]
    rows_SW = np.where(fits_SW, run.rows_SW, run.rows_SW.max(initial=0.0) + 1)
    masks_SW = rows_SW.argsort(axis=1, kind="stable")
    commits_SW = np.where(fits_SW, run.commits_SW, 0.0)
    return _Windows(
        masks_SW=masks_SW,
        commits_SW=np.take_along_axis(commits_SW, masks_SW, axis=1),
        rows_SW=np.take_along_axis(rows_SW, masks_SW, axis=1),
    )


def hull_density(rows_SW: FloatArray, commits_SW: FloatArray) -> FloatArray:
    """``[S, W]``: slope of the upper hull of commits over rows, from each place to the next; rows never fall.

    On the way to a place that is the least, over places before it, of the steepest slope to it or further.
    """
    place_W = np.arange(rows_SW.shape[1])
    commits_SWW = commits_SW[:, None, :] - commits_SW[:, :, None]  # [sequence, from, to]
    rows_SWW = np.maximum(rows_SW[:, None, :] - rows_SW[:, :, None], 1e-9)
    steepest_SWW = np.maximum.accumulate((commits_SWW / rows_SWW)[:, :, ::-1], axis=2)[:, :, ::-1]
    return np.where(place_W[:, None] < place_W, steepest_SWW, np.inf).min(axis=1)[:, 1:]
