"""Counts of masks' drafts in arrays: the readable form of :mod:`wedlm_core.kernels.cpu.draft_kernels`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wedlm_core.statistics import DraftSource

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(kw_only=True)
class Counts:
    """``counts`` by slot and ``job`` by family; see :class:`wedlm_core.engine.drafting.acceptance`."""

    counts: np.ndarray
    job: np.ndarray
    family_S: IntArray
    sequence_kept: float
    job_kept: float

    def observe(
        self, slots_D: IntArray, valid_D: BoolArray, offered_D: IntArray, agreed_D: IntArray, next_valid_D: BoolArray,
        source_DC: np.ndarray,
    ) -> None:  # fmt: skip
        """See :meth:`wedlm_core.engine.drafting.acceptance.Acceptance.observe`."""
        place_C = np.arange(source_DC.shape[1])
        agreed_D = np.minimum(agreed_D, offered_D)
        other_DC = (source_DC != DraftSource.MASK) & (place_C < offered_D[:, None])
        censored_D = (other_DC & (place_C == agreed_D[:, None])).any(axis=1)
        right_D = agreed_D - (other_DC & (place_C < agreed_D[:, None])).sum(axis=1)
        drafts_D = np.where(censored_D, right_D, offered_D - other_DC.sum(axis=1))
        agreed_D = np.minimum(right_D, drafts_D)
        through_D = (agreed_D == drafts_D) & ~censored_D
        offset_W, kind_D = np.arange(1, self.counts.shape[3]), valid_D.astype(np.int64)
        observed = np.empty((len(slots_D), 2, self.counts.shape[3]))
        observed[:, 0, :-1] = offset_W <= np.minimum(agreed_D + 1, drafts_D)[:, None]
        observed[:, 1, :-1] = offset_W <= agreed_D[:, None]
        observed[:, 0, -1] = through_D
        observed[:, 1, -1] = through_D & next_valid_D
        self.counts[kind_D, slots_D] = self.counts[kind_D, slots_D] * self.sequence_kept + observed
        family_D = self.family_S[slots_D]
        for family in set(family_D.tolist()):
            for kind in (0, 1):
                own = (family_D == family) & (kind_D == kind)
                if own.any():
                    self.job[family, kind] = self.job[family, kind] * self.job_kept + observed[own].sum(axis=0)
