"""Choose the arm, and the time of trials. Torch-free.

An arm is a set of draft sources. The model of step time and acceptance gives each arm an expected rate (tokens per
second); the correction of an arm is its measured rate divided by its expected rate. The controller runs the arm with
the highest corrected rate. It tries another arm, for a few tokens of each sequence, when the expected loss of the trial
is within its budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from wedlm_core.engine.drafting.constants import DraftingConstants
from wedlm_core.engine.drafting.step_time import StepTime

__all__ = ["Arm", "Controller", "Measured"]

_LEAST_LOSS = 0.1  # least expected loss of a trial, as a share of its time: it disturbs plans, too
_FIRST_TRIALS = 2  # of each arm that is near the best at the start of a job
_TOO_LONG = 3.0  # a trial ends after its expected seconds times this


class Arm(IntEnum):
    """A set of draft sources."""

    NONE = 0
    MASKS = 1
    HISTORY = 2
    HISTORY_AND_MASKS = 3

    @property
    def has_masks(self) -> bool:
        """Whether windows have masks."""
        return bool(self & 1)

    @property
    def has_history(self) -> bool:
        """Whether windows get drafts from history."""
        return bool(self & 2)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurement of a step.

    Attributes:
        tokens: output tokens.
        seconds: seconds of the step, the share of its prefill left out.
        rows: rows of the forward.
        expected: expected seconds of the forward by the corrected table; 0 if not known.
        off: natural logarithm of measured over expected seconds of the forward; 0 if not known.
    """

    tokens: float
    seconds: float
    rows: float = 0.0
    expected: float = 0.0
    off: float = 0.0


@dataclass(slots=True)
class _Record:
    """Results of an arm in an octave: tokens (decayed), measured and expected; trials, and the seconds at the last."""

    tokens: float = 0.0
    promised: float = 0.0
    trials: int = 0
    tried_at: float | None = None


@dataclass(slots=True)
class _Trial:
    """A trial in progress: sums over its counted forwards."""

    arm: Arm
    tokens_left: float
    seconds_left: float
    forwards: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    rows: float = 0.0
    expected: float = 0.0
    off: float = 0.0


class Controller:
    """Chooses the arm of the next forwards.

    Args:
        constants: of drafting.
        arms: the arms to choose from; one of them is ``NONE``.
        step_time: owner of the table that a trial may correct.

    Attributes:
        arm: the arm that is on; during a trial, the one that is tried.
        is_due: a trial has ended, so windows have to be planned at once.
    """

    def __init__(self, constants: DraftingConstants, arms: frozenset[Arm], step_time: StepTime) -> None:
        self._constants, self._arms, self._step_time = constants, arms, step_time
        self._records: dict[tuple[int, Arm], _Record] = {}
        self._expected: Mapping[Arm, float] = {}
        self._octave, self._sequences = 0, 1
        self._seconds, self._forwards = 0.0, 0
        self._is_known = False  # the last plan had seen enough forwards to know the step time
        self._usual = Arm.NONE
        self._trial: _Trial | None = None
        self.arm, self.is_due = Arm.NONE, False

    @property
    def in_trial(self) -> bool:
        """Whether the arm that is on is being tried."""
        return self._trial is not None

    def rate_of(self, arm: Arm) -> float:
        """Corrected tokens per second of an arm at the load of the last choice; 0 before the first choice."""
        record, expected = self._record(arm), self._expected.get(arm, 0.0)
        if record.tried_at is None and arm == Arm.HISTORY and self._usual == Arm.HISTORY_AND_MASKS:
            return self.rate_of(self._usual)  # it pays together with masks, so it may pay alone
        prior = self._constants.trial_tokens
        return expected * (record.tokens + prior) / (record.promised + prior)

    def choose(self, expected: Mapping[Arm, float], sequences: int) -> Arm:
        """Choose the arm by expected tokens per second, or begin a trial.

        Args:
            expected: arm -> expected tokens per second, uncorrected.
            sequences: number of running sequences.
        """
        self._expected, self._sequences, self.is_due = expected, max(1, sequences), False
        self._is_known = self._forwards >= 2 * self._constants.uncounted
        octave = max(0, sequences).bit_length()
        if octave != self._octave:
            self._octave, self._trial = octave, None
        if self._trial is not None:
            return self.arm
        rates = {arm: self.rate_of(arm) for arm in self._arms if expected.get(arm, 0.0) > 0}
        best = max(rates, key=rates.__getitem__, default=Arm.NONE)
        usual = self._usual if self._usual in rates else Arm.NONE
        if best != usual and rates[best] > (1 + self._constants.least_gain) * rates.get(usual, 0.0):
            usual = best
        self._usual = self.arm = usual
        self._record(usual).trials = _FIRST_TRIALS  # a usual arm needs no first trials
        self._begin_trial(rates)
        return self.arm

    def record(self, step: Measured) -> None:
        """Count a step of the arm that is on."""
        self._seconds += step.seconds
        self._forwards += 1
        trial, promised = self._trial, step.seconds * self._expected.get(self.arm, 0.0)
        if trial is None:
            if not self._is_known:
                return
            record, kept = self._record(self.arm), self._constants.counts_kept
            record.tokens = kept * record.tokens + step.tokens
            record.promised = kept * record.promised + promised
            return
        trial.forwards += 1
        if trial.forwards > self._constants.uncounted:
            trial.seconds_left -= step.seconds
            trial.tokens_left -= step.tokens
            trial.tokens, trial.seconds = trial.tokens + step.tokens, trial.seconds + step.seconds
            trial.rows, trial.expected = trial.rows + step.rows, trial.expected + step.expected
            trial.off += step.off * step.expected
        if trial.tokens_left <= 0 or trial.seconds_left <= 0:
            self._end_trial(trial)

    def _begin_trial(self, rates: Mapping[Arm, float]) -> None:
        """Begin the trial of the arm that has waited longest, among those within their budgets."""
        constants, usual = self._constants, self._usual
        if not self._is_known:
            return
        best, tokens = rates[usual], float(constants.trial_tokens * self._sequences)
        waits = dict[Arm, float]()
        for arm, rate in rates.items():
            record = self._record(arm)
            lost = tokens / rate * max(_LEAST_LOSS, 1 - rate / best)
            since = self._seconds - (record.tried_at or 0.0)
            # The first trial also loads code, so its rate is too low.
            thought = rate if record.tried_at is None else self._expected[arm]
            new = record.trials < _FIRST_TRIALS and thought >= constants.near * best
            if arm != usual and (new or lost <= constants.trial_share * since):
                waits[arm] = float("inf") if new else since
        if not waits:
            return
        arm = max(waits, key=waits.__getitem__)
        self._trial = _Trial(arm=arm, tokens_left=tokens, seconds_left=_TOO_LONG * tokens / rates[arm])
        self.arm = arm

    def _end_trial(self, trial: _Trial) -> None:
        """Correct the table at the rows of the trial, then the arm by the remaining difference; a plan is due."""
        self._trial, self.is_due = None, True
        record = self._record(trial.arm)
        record.tried_at, record.trials = self._seconds, record.trials + 1
        if not trial.seconds:
            return
        promised = trial.seconds * self._expected.get(trial.arm, 0.0)
        if trial.expected:
            off, rows = trial.off / trial.expected, trial.rows / (trial.forwards - self._constants.uncounted)
            if self._step_time.correct(rows, off):  # the table now explains this part of the difference
                promised *= max(0.0, 1 - trial.expected * (math.exp(off) - 1) / trial.seconds)
        kept = 0.5 if record.trials > _FIRST_TRIALS else 0.0  # the second replaces the first
        record.tokens, record.promised = kept * record.tokens + trial.tokens, kept * record.promised + promised

    def _record(self, arm: Arm) -> _Record:
        """The record of an arm in the present octave; a new one begins as a copy of the nearest octave's."""
        found = self._records.get((self._octave, arm))
        if found is None:
            near = min((key for key in self._records if key[1] == arm), key=lambda k: abs(k[0] - self._octave),
                       default=None)  # fmt: skip
            found = _Record() if near is None else replace(self._records[near])
            self._records[self._octave, arm] = found
        return found
