"""Estimate acceptance: the probability that a draft at each offset of each sequence is accepted. Torch-free.

The estimate is of the hazard: the probability that draft j is accepted if the drafts before it were. A forward that
verifies d drafts and accepts a of them tests offsets 1 .. min(a + 1, d); the others were not tested, and are not
counted. The probability that drafts 1 .. j are all accepted is the product of their hazards.

There are separate estimates for two kinds of drafts. *Valid* drafts were proposed after accepted drafts, by masks whose
first one agreed with the verifier. *Stale* drafts were proposed after a token that turned out wrong. Strategies accept
drafts by different rules, so the job has separate estimates by *family*: the sequences that share a decoding.
"""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.kernels.cpu.draft_kernels import learn
from wedlm_core.kernels.cpu.planning import acceptances
from wedlm_core.types import Strategy

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
        # [stale or valid, slot, (tested, right), offset]; the last offset counts agreements of the first mask.
        self._counts = np.zeros((2, slots, 2, widest + 1))
        self._job = np.zeros((len(Strategy), 2, 2, widest + 1))  # the same by family instead of slot
        self._family_S = np.zeros(slots, dtype=np.int64)

    def clear(self, slots_S: IntArray, family_S: IntArray | int = 0) -> None:
        """Clear the counts of slots for new sequences of these families; the counts of the job stay."""
        for slot in slots_S.tolist():  # there are one or two at a time
            self._counts[:, slot] = 0
        self._family_S[slots_S] = family_S

    def observe(
        self, slots_D: IntArray, valid_D: BoolArray, drafts_D: IntArray, agreed_D: IntArray, next_valid_D: BoolArray,
        source_DC: np.ndarray | None = None, own_D: BoolArray | None = None,
    ) -> None:  # fmt: skip
        """Count the outcome of a forward with masks or drafts.

        Drafts of other sources are not counted. If the first wrong draft is one of these, the drafts after it were not
        tested.

        Args:
            slots_D: int64, slot of each sequence.
            valid_D: bool, whether its drafts were valid.
            drafts_D: int64, number of verified drafts.
            agreed_D: int64, number of accepted drafts, from the first on.
            next_valid_D: bool, whether the remaining drafts are valid; False where the output ended.
            source_DC: int8, source of each draft (:class:`wedlm_core.statistics.DraftSource`); None: all from masks.
            own_D: bool, sequences that count; None: all.
        """
        count = len(slots_D)
        learn(
            slots_D, np.ones(count, dtype=np.bool_) if own_D is None else own_D, valid_D, drafts_D, agreed_D,
            next_valid_D, np.zeros((count, 0), dtype=np.int8) if source_DC is None else source_DC,
            self._family_S, self._counts, self._job, self._constants.counts_kept,
        )  # fmt: skip

    def by_kind(self, slots_S: IntArray) -> FloatArray:
        """``[2, S, W]`` (stale, valid): probability that the drafts up to each offset are all accepted.

        The failures of a sequence are in proportion to those of the job at each offset (proportional hazards), until
        the sequence has enough counts of its own at an offset.
        """
        constants, out_2SW = self._constants, np.empty((2, len(slots_S), len(self._offset_W)))
        weights = constants.failure_prior, constants.sequence_prior
        priors = np.array((constants.prior_hazard, constants.job_prior, *weights))
        acceptances(slots_S, self._family_S, self._counts, self._job, priors, out_2SW)
        return out_2SW

    def agreement(self, slots_S: IntArray) -> FloatArray:
        """``[2, S]`` (stale, valid): probability that the first mask agrees if all drafts were accepted."""
        constants = self._constants
        tested, agreed = self._job[self._family_S[slots_S], :, :, -1].transpose(2, 1, 0)
        job = (agreed + constants.job_prior * constants.prior_hazard) / (tested + constants.job_prior)
        own = self._counts[..., -1][:, slots_S]
        return (own[..., 1] + constants.sequence_prior * job) / (own[..., 0] + constants.sequence_prior)
