"""Results of masks' drafts in a forward, added to decayed counts: see :mod:`wedlm_core.engine.drafting.acceptance`.

Results equal those of arrays bit for bit (``testing/engine/acceptance_oracle.py``): whole numbers are added.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.statistics import DraftSource

_MASK = int(DraftSource.MASK)


@kernel
def _of_masks(offered, agreed, source):  # type: ignore[no-untyped-def]
    """Drafts of masks that were offered and right, and whether another source's draft ended the test."""
    others, wrong_other, before = 0, False, 0
    for j in range(min(offered, len(source))):
        if source[j] != _MASK:
            others += 1
            before += j < agreed
            wrong_other = wrong_other or j == agreed
    right = agreed - before
    return (right if wrong_other else offered - others), right, wrong_other


@kernel
def learn(  # type: ignore[no-untyped-def]
    slots, own, valid, offered, agreed, next_valid, goes_on, source, families, counts, job, kept
):
    """Count the drafts of D sequences.

    Args:
        slots: int64 ``[D]``, different ones.
        own: bool ``[D]``, sequences that count.
        valid: bool ``[D]``, the kind of their drafts.
        offered: int64 ``[D]``, drafts that were verified.
        agreed: int64 ``[D]``, how many of these, from the first, were accepted.
        next_valid: bool ``[D]``, the kind of the remaining drafts.
        goes_on: bool ``[D]``, outputs that have not ended.
        source: int8 ``[D, P]``, where drafts come from; later drafts are masks'.
        families: int64 ``[slots]``.
        counts: float64 ``[2, slots, 2, W + 1]``, changed: stale and valid; tested and right.
        job: float64 ``[families, 2, 2, W + 1]``, changed.
        kept: share of both that is kept.
    """
    width = counts.shape[3] - 1
    new = np.zeros((job.shape[0], 2, 2, width + 1))
    seen = np.zeros((job.shape[0], 2), dtype=np.bool_)
    for d in range(len(slots)):
        if not own[d]:
            continue
        slot, kind = slots[d], 1 if valid[d] else 0
        drafts, right, cut_off = _of_masks(offered[d], min(agreed[d], offered[d]), source[d])
        right = min(right, drafts)
        through = right == drafts and goes_on[d] and not cut_off
        family = families[slot]
        seen[family, kind] = True
        for j in range(width + 1):
            if j < width:
                tested, hit = j < min(right + 1, drafts), j < right
            else:
                tested, hit = through, through and next_valid[d]
            counts[kind, slot, 0, j] = counts[kind, slot, 0, j] * kept + tested
            counts[kind, slot, 1, j] = counts[kind, slot, 1, j] * kept + hit
            new[family, kind, 0, j] += tested
            new[family, kind, 1, j] += hit
    for family in range(job.shape[0]):
        for kind in range(2):
            if seen[family, kind]:
                job[family, kind] = job[family, kind] * kept + new[family, kind]
