"""How likely a draft at each offset of each sequence is to be accepted. Torch-free.

What is estimated is the hazard: the probability that draft j is right given that the drafts before it were.
A forward that verifies d drafts and accepts a of them tells of offsets 1 .. min(a + 1, d) only; the rest is
censored, not failed. Estimates are kept apart for two kinds of drafts: *valid* ones, proposed behind
accepted drafts by masks the first of which agreed with the verifier, and *stale* ones, which were proposed
behind a token that turned out wrong. Acceptance of draft j is the product of the hazards up to it.

Strategies accept drafts by rules of their own, so what is learned over the job is kept apart by *family*: sequences
that share a decoding. Those of a mixed batch do not tell of each other.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning
from wedlm_core.types import Strategy

__all__ = ["Acceptance"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Acceptance:
    """Running averages by slot and offset, seeded by the averages of the whole job.

    Args:
        slots: engine slots.
        widest: largest window W; drafts have offsets 1 .. W.
    """

    def __init__(self, slots: int, widest: int, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self._offset_W = np.arange(1, widest + 1)
        # [stale or valid, slot, (tested, right), offset or "the first mask agreed" in the last place]
        self._counts = np.zeros((2, slots, 2, widest + 1))
        self._job = np.zeros((len(Strategy), 2, 2, widest + 1))  # by family, else the same without slots
        self._family_S = np.zeros(slots, dtype=np.int64)
        # Sums over sequences that went: expected failures squared, and what failures vary beyond chance.
        self._spread = np.zeros(2)
        self._lengths = np.zeros(self._tuning.lengths, dtype=np.int64)
        self._finished = 0

    def clear(self, slots_S: IntArray, family_S: IntArray | int = 0) -> None:
        """Forget the past of slots, which are of these families now; the job keeps its share of it."""
        self._compare(slots_S)
        self._counts[:, slots_S] = 0
        self._family_S[slots_S] = family_S

    def _of_families(self, slots_S: IntArray) -> FloatArray:
        """:meth:`job_hazard` of the families of slots, ``[2, S or 1, W]``."""
        family_S = self._family_S[slots_S]
        families = set(family_S.tolist())
        if len(families) == 1:
            return self.job_hazard(families.pop())[:, None]
        hazard = np.empty((2, len(slots_S), len(self._offset_W)))
        for family in families:
            hazard[:, family_S == family] = self.job_hazard(family)[:, None]
        return hazard

    def _compare(self, slots_S: IntArray) -> None:
        """How far sequences failed more or less often than the job (gamma-Poisson, method of moments)."""
        trials, hits = self._by_offset(slots_S)
        if not trials.any():
            return  # they had no masks
        expected_S = (trials * (1 - self._of_families(slots_S))).sum(axis=(0, 2))
        failed_S = (trials - hits).sum(axis=(0, 2))
        self._spread += ((expected_S**2).sum(), ((failed_S - expected_S) ** 2 - expected_S).sum())
        if self._spread[0] > self._tuning.spread_most:
            self._spread *= 0.5

    def alike(self) -> float:
        """How much more than at first a sequence's estimate keeps to the job's: many alike ones are not told apart."""
        if not self._tuning.spread:
            return 1.0
        same, spread = self._spread.tolist()
        return (
            (self._tuning.spread_count * self._tuning.prior_failures + same)
            / (self._tuning.spread_count + max(spread, 0.0))
            / self._tuning.prior_failures
        )

    def observe(
        self,
        slots_D: IntArray,
        valid_D: BoolArray,
        drafts_D: IntArray,
        agreed_D: IntArray,
        next_valid_D: BoolArray,
        goes_on_D: BoolArray,
    ) -> None:
        """Take in a forward with masks or drafts.

        Args:
            slots_D: the sequences.
            valid_D: the kind of their drafts.
            drafts_D: how many were verified.
            agreed_D: how many of these, from the first, were accepted.
            next_valid_D: the kind of what is left.
            goes_on_D: whether the output has not ended: what masks propose behind an end tells nothing.
        """
        if not len(slots_D):
            return
        kind_D = valid_D.astype(np.int64)
        agreed_D = np.minimum(agreed_D, drafts_D)  # streaming keeps what a wider window filled before
        through_D = (agreed_D == drafts_D) & goes_on_D
        told = np.empty((len(slots_D), 2, len(self._offset_W) + 1))
        told[:, 0, :-1] = self._offset_W <= np.minimum(agreed_D + 1, drafts_D)[:, None]
        told[:, 1, :-1] = self._offset_W <= agreed_D[:, None]
        told[:, 0, -1] = through_D
        told[:, 1, -1] = through_D & next_valid_D
        self._counts[kind_D, slots_D] = self._counts[kind_D, slots_D] * self._tuning.forget + told
        family_D = self._family_S[slots_D]
        for family in set(family_D.tolist()):
            mine = family_D == family
            for kind, own in enumerate((mine & ~valid_D, mine & valid_D)):
                if own.any():
                    self._job[family, kind] = self._job[family, kind] * self._tuning.job_kept + told[own].sum(axis=0)

    def doubt(self) -> None:
        """Half of what is known of the job is taken back: it does not go on as it did."""
        self._job *= 0.5
        self._spread *= 0.5

    def finished(self, tokens: int) -> None:
        """An output ended at this length."""
        self._lengths[self._finished % self._tuning.lengths] = tokens
        self._finished += 1

    def job_hazard(self, family: int = 0) -> FloatArray:
        """``[2, W]`` (stale, valid): hazard over the whole job, of one family.

        An offset not seen yet is like the one before; stale drafts are like valid ones until they show otherwise.
        """
        (stale_tested, stale_right), (tested, right) = self._job[family, :, :, :-1].tolist()
        valid, before = [], self._tuning.prior_hazard
        for trials, hits in zip(tested, right, strict=True):
            before = (hits + self._tuning.job_prior * before) / (trials + self._tuning.job_prior)
            valid.append(before)
        stale, ratio = [], 1.0
        for trials, hits, other in zip(stale_tested, stale_right, valid, strict=True):
            found = (hits + self._tuning.job_prior * min(1.0, ratio * other)) / (trials + self._tuning.job_prior)
            ratio = found / max(other, 1e-9)
            stale.append(found)
        return np.array([stale, valid])

    def by_kind(self, slots_S: IntArray) -> FloatArray:
        """``[2, S, W]`` (stale, valid): probability that the drafts up to each offset are all accepted."""
        job_fail, alike = 1 - self._of_families(slots_S), self.alike()
        prior_failures, prior_trials = alike * self._tuning.prior_failures, alike * self._tuning.prior_trials
        trials, hits = self._by_offset(slots_S)
        # A sequence fails in proportion to the job's profile over offsets (proportional hazards) ...
        failed = trials.sum(axis=-1) - hits.sum(axis=-1)
        expected = (trials * job_fail).sum(axis=-1)
        ratio = (failed + prior_failures) / (expected + prior_failures)
        if not self._tuning.failure_ratio:
            ratio = np.ones_like(ratio)
        prior = 1 - np.minimum(1.0, job_fail * ratio[..., None])
        # ... but for offsets that it has shown otherwise often enough.
        hazard = (hits + prior_trials * prior) / (trials + prior_trials)
        return hazard.cumprod(axis=-1)

    def agreement(self, slots_S: IntArray) -> FloatArray:
        """``[2, S]`` (stale, valid): how often the first mask agrees once all drafts were accepted."""
        times, agreed = self._job[self._family_S[slots_S], :, :, -1].transpose(2, 1, 0)
        job = (agreed + self._tuning.job_prior * self._tuning.prior_hazard) / (times + self._tuning.job_prior)
        own = self._counts[..., -1][:, slots_S]
        return (own[..., 1] + self._tuning.prior_trials * job) / (own[..., 0] + self._tuning.prior_trials)

    def _by_offset(self, slots_S: IntArray) -> tuple[FloatArray, FloatArray]:
        """How often drafts were tested and right, each ``[2, S, W]`` (stale, valid)."""
        own = self._counts[..., :-1][:, slots_S]
        return own[:, :, 0], own[:, :, 1]

    def alive(self) -> FloatArray:
        """``[W]``: probability that an output goes on for 1 .. W more tokens, at any token, by the job's lengths."""
        known = min(self._finished, self._tuning.lengths)
        if not known or not self._tuning.alive:
            return np.ones(len(self._offset_W))
        # One more that is as long as many of them: few lengths do not make all others end.
        lengths = np.append(self._lengths[:known], self._tuning.length_prior)
        return np.maximum(lengths[:, None] - self._offset_W, 0).sum(axis=0) / lengths.sum()
