"""The arithmetic of a plan of windows (:mod:`wedlm_core.engine.drafting`), sequence by sequence.

A plan is a few thousand operations on numbers; as operations on arrays it took as long as the smallest forwards, since
launching one takes longer than its numbers. Results equal those of ``testing/engine/planning_oracle.py``.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.kernels.cpu.compiled import kernel


@kernel
def _job_hazards(job, prior, weight, hazard):  # type: ignore[no-untyped-def]
    """Hazards of one family over a job, of stale and valid drafts.

    An offset without counts has the hazard of the one before; stale drafts begin with the hazards of valid ones.

    Args:
        job: float64 ``[2, 2, W + 1]``, stale and valid, tested and right; of one family.
        prior: hazard before anything was seen.
        weight: of it, in observations.
        hazard: float64 ``[2, W]``, written.
    """
    before, ratio = prior, 1.0
    for j in range(hazard.shape[1]):
        before = (job[1, 1, j] + weight * before) / (job[1, 0, j] + weight)
        hazard[1, j] = before
        stale = (job[0, 1, j] + weight * min(1.0, ratio * before)) / (job[0, 0, j] + weight)
        ratio = stale / max(before, 1e-9)
        hazard[0, j] = stale


@kernel
def _accepted(counts, hazard, prior_failures, prior_sequence, out):  # type: ignore[no-untyped-def]
    """Of one sequence and kind: probability that the drafts up to each offset are all accepted."""
    failed, expected = 0.0, 0.0
    for j in range(len(out)):
        failed += counts[0, j] - counts[1, j]
        expected += counts[0, j] * (1.0 - hazard[j])
    ratio = (failed + prior_failures) / (expected + prior_failures)
    reached = 1.0
    for j in range(len(out)):
        prior = 1.0 - min(1.0, (1.0 - hazard[j]) * ratio)
        reached *= (counts[1, j] + prior_sequence * prior) / (counts[0, j] + prior_sequence)
        out[j] = reached


@kernel
def acceptances(slots, families, counts, job, priors, out):  # type: ignore[no-untyped-def]
    """See :meth:`wedlm_core.engine.drafting.acceptance.Acceptance.by_kind`.

    Args:
        slots: int64 ``[S]``.
        families: int64 ``[slots]``.
        counts: float64 ``[2, slots, 2, W + 1]``.
        job: float64 ``[families, 2, 2, W + 1]``.
        priors: float64 ``[4]``: hazard, its weight, weights of failures and of a sequence's offsets.
        out: float64 ``[2, S, W]``, written.
    """
    width = out.shape[2]
    hazard, known = np.zeros((job.shape[0], 2, width)), np.zeros(job.shape[0], dtype=np.bool_)
    for s in range(len(slots)):
        slot = slots[s]
        family = families[slot]
        if not known[family]:
            _job_hazards(job[family], priors[0], priors[1], hazard[family])
            known[family] = True
        for kind in range(2):
            _accepted(counts[kind, slot], hazard[family, kind], priors[2], priors[3], out[kind, s])


@kernel
def long_runs(valid, stale, agree, commits, rows, kept):  # type: ignore[no-untyped-def]
    """See :func:`wedlm_core.engine.drafting.masks.long_run`.

    Args:
        valid: float64 ``[S, W]``.
        stale: float64 ``[S, W]``.
        agree: float64 ``[2, S]``.
        commits: float64 ``[S, W + 1]``, written.
        rows: float64 ``[S, W + 1]``, written.
        kept: int64 ``[S, W + 1]``, written.
    """
    count, width = valid.shape
    of_valid, of_stale = np.ones(width + 1), np.ones(width + 1)  # expected commits by number of drafts
    for s in range(count):
        for j in range(width):
            of_valid[j + 1] = of_valid[j] + valid[s, j]
            of_stale[j + 1] = of_stale[j] + stale[s, j]
        commits[s, 0], rows[s, 0], kept[s, 0] = 1.0, 1.0, width
        for masks in range(1, width + 1):
            stay = (valid[s, masks - 2] if masks > 1 else 1.0) * agree[1, s]
            best, candidate = -np.inf, 0
            while True:
                # The verifier decides a single mask.
                keep = 0 if masks == 1 else min(masks, candidate)
                recover = (stale[s, keep - 1] if keep else 1.0) * agree[0, s]
                share = recover / max(recover + 1.0 - stay, 1e-9)  # of forwards whose drafts are valid
                found = share * of_valid[masks - 1] + (1.0 - share) * of_stale[keep]
                taken = share * (2.0 * masks) + (1.0 - share) * (1.0 + keep + masks)
                if found > best:
                    best = found
                    commits[s, masks], rows[s, masks], kept[s, masks] = found, taken, keep
                candidate = 2 * candidate if candidate else 1
                if candidate > width or candidate >= 2 * masks:
                    break


@kernel
def hull_density(rows, commits, density):  # type: ignore[no-untyped-def]
    """Slope of the upper hull of commits over rows, from each place to the next.

    On the way to a place that is the least, over places before it, of the steepest slope to it or further. The slope to
    a wider window that takes fewer rows has nearly no bound.

    Args:
        rows: float64 ``[S, W + 1]``.
        commits: float64 ``[S, W + 1]``.
        density: float64 ``[S, W]``, written.
    """
    places = rows.shape[1]
    for s in range(rows.shape[0]):
        density[s] = np.inf
        for i in range(places - 1):
            steepest = -np.inf
            for j in range(places - 1, i, -1):
                slope = (commits[s, j] - commits[s, i]) / max(rows[s, j] - rows[s, i], 1e-9)
                steepest = max(steepest, slope)
                density[s, j - 1] = min(density[s, j - 1], steepest)
