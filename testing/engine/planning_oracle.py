"""A plan of windows in arrays: the readable form of :mod:`wedlm_core.kernels.cpu.planning`."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.drafting.acceptance import Acceptance
from wedlm_core.engine.drafting.masks import LongRun

FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def job_hazard(acceptance: Acceptance, family: int = 0) -> FloatArray:
    """``[2, W]`` (stale, valid): hazard over the whole job, of one family.

    An offset not seen yet is like the one before; stale drafts are like valid ones until they show otherwise.
    """
    weight = acceptance._constants.job_prior
    (stale_tested, stale_right), (tested, right) = acceptance._job[family, :, :, :-1].tolist()
    valid, before = [], acceptance._constants.prior_hazard
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
    weight = acceptance._constants.failure_prior
    failed, expected = (tested - right).sum(axis=-1), (tested * job_fails).sum(axis=-1)
    ratio = (failed + weight) / (expected + weight)
    prior = 1 - np.minimum(1.0, job_fails * ratio[..., None])
    # ... but for offsets that it has shown otherwise often enough.
    weight = acceptance._constants.sequence_prior
    return ((right + weight * prior) / (tested + weight)).cumprod(axis=-1)


def long_run(valid_SW: FloatArray, stale_SW: FloatArray, agree_2S: FloatArray) -> LongRun:
    """See :func:`wedlm_core.engine.drafting.masks.long_run`."""
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

    best_SW1 = commits_SWK.argmax(axis=-1)[..., None]
    kept_SW, commits_SW, rows_SW = (
        np.take_along_axis(found, best_SW1, axis=-1)[..., 0] for found in (kept_WK[None], commits_SWK, rows_SWK)
    )
    return LongRun(
        commits_SW=np.concatenate([one_S1, commits_SW], axis=1),
        rows_SW=np.concatenate([one_S1, rows_SW], axis=1),
        kept_SW=np.concatenate([all_S1, kept_SW], axis=1),
    )
