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

from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.kernels.cpu.learn import learn
from wedlm_core.kernels.cpu.planning import acceptances, job_hazards
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
        constants: of drafting.
    """

    def __init__(self, slots: int, widest: int, constants: DraftingConstants = CONSTANTS) -> None:
        self._constants = constants
        self._offset_W = np.arange(1, widest + 1)
        # [stale or valid, slot, (tested, right), offset]; the last offset is "then the first mask agreed".
        self._counts = np.zeros((2, slots, 2, widest + 1))
        self._job = np.zeros((len(Strategy), 2, 2, widest + 1))  # the same by family instead of slot
        self._family_S = np.zeros(slots, dtype=np.int64)

    def clear(self, slots_S: IntArray, family_S: IntArray | int = 0) -> None:
        """Forget the past of slots, which are of these families now; the job keeps its share of it."""
        for slot in slots_S.tolist():  # they come by ones and twos
            self._counts[:, slot] = 0
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
            self._constants.counts_kept,
        )

    def job_hazard(self, family: int = 0) -> FloatArray:
        """``[2, W]`` (stale, valid): hazard over the whole job, of one family.

        An offset not seen yet is like the one before; stale drafts are like valid ones until they show otherwise.
        """
        hazard_2W = np.empty((2, len(self._offset_W)))
        job_hazards(self._job[family], self._constants.prior_hazard, self._constants.job_prior, hazard_2W)
        return hazard_2W

    def by_kind(self, slots_S: IntArray) -> FloatArray:
        """``[2, S, W]`` (stale, valid): probability that the drafts up to each offset are all accepted.

        A sequence fails in proportion to the job's profile over offsets (proportional hazards), but for offsets that it
        has shown otherwise often enough.
        """
        constants, out_2SW = self._constants, np.empty((2, len(slots_S), len(self._offset_W)))
        weights = constants.failure_prior, constants.sequence_prior
        priors = np.array((constants.prior_hazard, constants.job_prior, *weights))
        acceptances(slots_S, self._family_S, self._counts, self._job, priors, out_2SW)
        return out_2SW

    def agreement(self, slots_S: IntArray) -> FloatArray:
        """``[2, S]`` (stale, valid): how often the first mask agrees once all drafts were accepted."""
        constants = self._constants
        tested, agreed = self._job[self._family_S[slots_S], :, :, -1].transpose(2, 1, 0)
        job = (agreed + constants.job_prior * constants.prior_hazard) / (tested + constants.job_prior)
        own = self._counts[..., -1][:, slots_S]
        return (own[..., 1] + constants.sequence_prior * job) / (own[..., 0] + constants.sequence_prior)
