"""Estimate acceptance: how likely a draft at each offset of each sequence is to be accepted. Torch-free.

What is estimated is the hazard: the probability that draft j is right given that the drafts before it were.
A forward that verifies d drafts and accepts a of them tells of offsets 1 .. min(a + 1, d) only; the rest is
censored, not failed. Acceptance of draft j is the product of the hazards up to it.

Estimates are kept apart for two kinds of drafts: *valid* ones, proposed behind accepted drafts by masks the first of
which agreed with the verifier, and *stale* ones, which were proposed behind a token that turned out wrong. Strategies
accept drafts by rules of their own, so the job's estimates are kept apart by *family*: sequences that share a decoding.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning
from wedlm_core.kernels.cpu.learn import learn
from wedlm_core.types import Strategy

__all__ = ["Acceptance"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Acceptance:
    """Decayed counts by slot and offset, with the counts of the whole job as their prior.

    Args:
        slots: engine slots.
        widest: largest window W; drafts have offsets 1 .. W.
        tuning: constants.
    """

    def __init__(self, slots: int, widest: int, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self._offset_W = np.arange(1, widest + 1)
        # [stale or valid, slot, (tested, right), offset]; the last offset is "then the first mask agreed".
        self._counts = np.zeros((2, slots, 2, widest + 1))
        self._job = np.zeros((len(Strategy), 2, 2, widest + 1))  # the same by family instead of slot
        self._family_S = np.zeros(slots, dtype=np.int64)

    def clear(self, slots_S: IntArray, family_S: IntArray | int = 0) -> None:
        """Forget the past of slots, which are of these families now; the job keeps its share of it."""
        self._counts[:, slots_S] = 0
        self._family_S[slots_S] = family_S

    def observe(
        self,
        slots_D: IntArray,
        valid_D: BoolArray,
        drafts_D: IntArray,
        agreed_D: IntArray,
        next_valid_D: BoolArray,
        continues_D: BoolArray,
        source_DC: np.ndarray | None = None,
        own_D: BoolArray | None = None,
    ) -> None:
        """Count the outcome of a forward with masks or drafts.

        A draft of another source among those of masks tells nothing of masks; where it is the first that is wrong, the
        test of those behind it is censored.

        Args:
            slots_D: the sequences.
            valid_D: the kind of their drafts.
            drafts_D: how many were verified.
            agreed_D: how many of these, from the first, were accepted.
            next_valid_D: the kind of what is left.
            continues_D: whether the output has not ended: what masks propose behind an end tells nothing.
            source_DC: int8, where the drafts come from (:class:`wedlm_core.statistics.DraftSource`); None: from masks.
            own_D: sequences that count; None: all.
        """
        count = len(slots_D)
        learn(
            slots_D,
            np.ones(count, dtype=np.bool_) if own_D is None else own_D,
            valid_D,
            drafts_D,
            agreed_D,
            next_valid_D,
            continues_D,
            np.zeros((count, 0), dtype=np.int8) if source_DC is None else source_DC,
            self._family_S,
            self._counts,
            self._job,
            self._tuning.sequence_kept,
            self._tuning.job_kept,
        )

    def job_hazard(self, family: int = 0) -> FloatArray:
        """``[2, W]`` (stale, valid): hazard over the whole job, of one family.

        An offset not seen yet is like the one before; stale drafts are like valid ones until they show otherwise.
        """
        weight = self._tuning.prior_job
        (stale_tested, stale_right), (tested, right) = self._job[family, :, :, :-1].tolist()
        valid, before = [], self._tuning.prior_hazard
        for trials, hits in zip(tested, right, strict=True):
            before = (hits + weight * before) / (trials + weight)
            valid.append(before)
        stale, ratio = [], 1.0
        for trials, hits, other in zip(stale_tested, stale_right, valid, strict=True):
            hazard = (hits + weight * min(1.0, ratio * other)) / (trials + weight)
            ratio = hazard / max(other, 1e-9)
            stale.append(hazard)
        return np.array([stale, valid])

    def by_kind(self, slots_S: IntArray) -> FloatArray:
        """``[2, S, W]`` (stale, valid): probability that the drafts up to each offset are all accepted."""
        family_S = self._family_S[slots_S]
        job_fails = np.empty((2, len(slots_S), len(self._offset_W)))
        for family in set(family_S.tolist()):
            job_fails[:, family_S == family] = 1 - self.job_hazard(family)[:, None]
        tested, right = self._counts[:, slots_S, :, :-1].transpose(2, 0, 1, 3)
        # A sequence fails in proportion to the job's profile over offsets (proportional hazards) ...
        weight = self._tuning.prior_failures
        failed, expected = (tested - right).sum(axis=-1), (tested * job_fails).sum(axis=-1)
        ratio = (failed + weight) / (expected + weight)
        prior = 1 - np.minimum(1.0, job_fails * ratio[..., None])
        # ... but for offsets that it has shown otherwise often enough.
        weight = self._tuning.prior_sequence
        return ((right + weight * prior) / (tested + weight)).cumprod(axis=-1)

    def agreement(self, slots_S: IntArray) -> FloatArray:
        """``[2, S]`` (stale, valid): how often the first mask agrees once all drafts were accepted."""
        tuning = self._tuning
        tested, agreed = self._job[self._family_S[slots_S], :, :, -1].transpose(2, 1, 0)
        job = (agreed + tuning.prior_job * tuning.prior_hazard) / (tested + tuning.prior_job)
        own = self._counts[..., -1][:, slots_S]
        return (own[..., 1] + tuning.prior_sequence * job) / (own[..., 0] + tuning.prior_sequence)
