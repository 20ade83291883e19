"""Drafts of one forward: results of masks' drafts, how many drafts from history to take, and windows that hold them.

Counts equal those of arrays bit for bit (``testing/engine/acceptance_oracle.py``): whole numbers are added. See
:mod:`wedlm_core.engine.drafting.acceptance` and :mod:`wedlm_core.engine.drafting.windows`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel
from wedlm_core.statistics import DraftSource

Array = np.ndarray[Any, np.dtype[Any]]

_MASK, _HISTORY = int(DraftSource.MASK), int(DraftSource.HISTORY)


class Columns(NamedTuple):
    """Columns of :class:`wedlm_core.engine.scheduling.slots.SlotTable`; ``source`` and ``rows`` are written."""

    source: Array
    stop_ids: Array
    widest: Array
    limit: Array
    generated: Array
    rows: Array
    masks: Array


class Windows(NamedTuple):
    """Windows in X places, written.

    Attributes:
        place: int64 ``[D]``, where those of the decoding sequences are.
        token: int64 ``[X, L]``: drafts, and the mask id after them.
        filled: bool ``[X, L]``, which of them are drafts.
        lead: int64 ``[X]``, drafts.
        length: int64 ``[X]``, drafts and masks.
    """

    place: Array
    token: Array
    filled: Array
    lead: Array
    length: Array


@kernel
def count_worth(slots, lives, acceptance, valid, lead, by_masks, price, take):  # type: ignore[no-untyped-def]
    """Count the drafts of history that are worth their rows, 0 where the drafts of masks are worth more.

    Args:
        slots: int64 ``[D]``.
        lives: bool ``[D]``, sequences that go on and may have drafts from history.
        acceptance: float32 ``[D, P]``, probability that a draft and all before it are accepted; 0 after the last.
        valid: bool ``[D]``, whether the drafts of masks are.
        lead: int64 ``[D]``, how many of these there are.
        by_masks: float64 ``[2, slots, W]``, probability that drafts of masks up to each offset are accepted (stale
            ones, valid ones).
        price: commits that a row has to gain.
        take: int64 ``[D]``, written.
    """
    for d in range(len(slots)):
        take[d] = 0
        if not lives[d]:
            continue
        gained, count = 0.0, 0
        while count < acceptance.shape[1] and acceptance[d, count] >= price:
            gained += acceptance[d, count] - price
            count += 1
        own = by_masks[1 if valid[d] else 0, slots[d]]
        for j in range(min(lead[d], len(own))):
            gained -= own[j] - price
        take[d] = count if gained > 0 else 0


@kernel
def write_drafts(slots, lives, committed, offered, token, take, columns, windows, mask):  # type: ignore[no-untyped-def]
    """Write the next windows of sequences whose drafts are from history, or were and are wrong now.

    Args:
        slots: int64 ``[D]``.
        lives: bool ``[D]``, sequences that go on, may have such drafts, and have no grammar.
        committed: int64 ``[D]``, tokens of the forward.
        offered: int64 ``[D]``, drafts of the forward.
        token: int32 ``[D, P]``, drafts of history.
        take: int64 ``[D]``, how many of them to take.
        columns: :class:`Columns`.
        windows: :class:`Windows`.
        mask: id of the mask token.

    Returns:
        Whether any window was written.
    """
    wrote = False
    for d in range(len(slots)):
        slot = slots[d]
        if not lives[d]:
            continue
        at, own, broken = windows.place[d], columns.source[slot], False
        for j in range(committed[d], min(offered[d], len(own))):
            broken = broken or own[j] == _HISTORY  # it followed a draft that was wrong
        own[:] = _MASK
        if take[d] == 0 and not broken:
            continue
        most = min(2 * columns.widest[slot], columns.limit[slot] - columns.generated[slot])
        lead, masks = 0, min(max(columns.masks[slot], 0), most)
        for j in range(min(take[d], most)):
            windows.token[at, j], own[j], lead = token[d, j], _HISTORY, j + 1
            if _stops(columns.stop_ids[slot], token[d, j]):
                masks = 0
                break
        length = lead + min(masks, most - lead)
        for j in range(windows.token.shape[1]):
            windows.filled[at, j] = j < lead
            if j >= lead:
                windows.token[at, j] = mask
        windows.lead[at], windows.length[at], columns.rows[slot] = lead, length, 1 + length
        wrote = True
    return wrote


@kernel
def _stops(stops, token):  # type: ignore[no-untyped-def]
    for one in stops:  # noqa: SIM110  # Numba compiles no generators here
        if one == token:
            return True
    return False


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
    slots, own, valid, offered, agreed, next_valid, source, families, counts, job, kept
):
    """Count the drafts of D sequences.

    Args:
        slots: int64 ``[D]``, different ones.
        own: bool ``[D]``, sequences that count.
        valid: bool ``[D]``, the kind of their drafts.
        offered: int64 ``[D]``, drafts that were verified.
        agreed: int64 ``[D]``, how many of these, from the first, were accepted.
        next_valid: bool ``[D]``, the kind of the remaining drafts.
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
        through = right == drafts and not cut_off
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
