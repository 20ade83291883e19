"""Probe: sequences without masks get a few now and then, else a job that became easy is never found out. Torch-free."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.windows.step_time import Load
from wedlm_core.engine.windows.tuning import PlannerTuning
from wedlm_core.statistics import DraftSource

__all__ = ["Probes"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Probes:
    """What probes may cost, and whose turn it is.

    A probe is paid in commits that come later by it: a share of the time, and what its own drafts bring on top.

    Attributes:
        slots: that are probed now.
        patience: how many times as rare probes are, as they change nothing.
    """

    def __init__(self, tuning: PlannerTuning) -> None:
        self._tuning = tuning
        self._commits, self._count = 0.0, 0  # that may come later; probes so far
        self.patience = 1
        self.slots: IntArray = np.zeros(0, dtype=np.int64)

    def observe(self, slots_D: IntArray, agreed_D: IntArray, source_DC: np.ndarray) -> None:
        """Let what masks of probes brought pay for the next ones: an easy job is found out sooner and loses nothing.

        Args:
            slots_D: sequences of a forward.
            agreed_D: drafts of each that were accepted.
            source_DC: int8, where they came from: others than those of masks were there without the probe.
        """
        if len(self.slots):
            own_D = np.isin(slots_D, self.slots)
            agreed_DC = np.arange(source_DC.shape[1]) < agreed_D[own_D, None]
            self._commits += np.count_nonzero(agreed_DC & (source_DC[own_D] == DraftSource.MASK))

    def stop(self) -> None:
        """No sequence is probed any more."""
        self.slots = self.slots[:0]

    def place(
        self, slots_S: IntArray, masks_S: IntArray, widest_S: IntArray, load: Load, seconds_per_commit: float,
        *, waited: int, lasts: int, overhead: float = 0.0,
    ) -> bool:  # fmt: skip
        """Give masks to sequences that have none, if it is time to; True in that case.

        Args:
            slots_S: the sequences.
            masks_S: of each, changed.
            widest_S: windows at most.
            load: what forwards cost.
            seconds_per_commit: as things are.
            waited: forwards since the last call.
            lasts: forwards until the next.
            overhead: seconds that a probe takes besides those of its forwards: plans begin and end it.
        """
        self.stop()
        tuning, sequences = self._tuning, len(masks_S)
        idle = np.flatnonzero((masks_S < 2) & (widest_S >= tuning.probe_masks))
        self._commits += tuning.probe_share * waited * sequences / self.patience
        besides = overhead / seconds_per_commit
        if not len(idle) or self._commits < lasts * tuning.probe_cost * sequences + besides:
            return False
        rows = load.other_rows + sequences + 2.0 * masks_S.sum()
        most = min(len(idle), int(load.most_rows - rows) // (2 * tuning.probe_masks))
        if most < 1:
            return False
        count, seconds = self._how_many(load, rows, masks_S, most)
        price = lasts * seconds / seconds_per_commit + besides
        if self._commits < price:
            return False
        self._commits = min(self._commits - price, price)
        taken = idle[(self._count + np.arange(count)) % len(idle)]
        masks_S[taken], self.slots = tuning.probe_masks, slots_S[taken]
        self._count += count
        self.patience = min(2 * self.patience, tuning.most_probe_patience)
        return True

    def _how_many(self, load: Load, rows: float, masks_S: IntArray, most: int) -> tuple[int, float]:
        """How many sequences to probe at once, and how many seconds a forward takes longer by that.

        Part of what a probe costs is paid once: so many are probed that their rows cost no more than that, or than one.
        """
        count_P = 1 << np.arange(most.bit_length())
        seconds_P = load.seconds(rows + 2.0 * self._tuning.probe_masks * np.append(0, count_P), len(masks_S))
        once = max(self._tuning.probe_cost * float(seconds_P[0]), 0.0 if masks_S.any() else load.spared_alone)
        rows_P = seconds_P[1:] - seconds_P[0]
        taken = int(np.flatnonzero(rows_P <= max(once, float(rows_P[0])))[-1])
        return int(count_P[taken]), once + float(rows_P[taken])
