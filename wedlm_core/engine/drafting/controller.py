"""Choose the arm, and the time of trials. Torch-free.

An arm is a set of draft sources. The model of step time and acceptance gives each arm an expected rate (tokens per
second); the correction of an arm is its measured rate divided by its expected rate. The controller runs the arm with
the highest corrected rate. It tries another arm, for a few tokens of each sequence, when the expected loss of the trial
is within its budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from wedlm_core.engine.drafting.constants import DraftingConstants


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


@dataclass(slots=True)
class _Record:
    """Results of an arm: tokens (decayed), measured and expected, and the job's seconds when it was last measured."""

    tokens: float = 0.0
    promised: float = 0.0
    known_at: float | None = None

    def correction(self, prior: float) -> float:
        """Measured over expected tokens, with 1 as prior."""
        return (self.tokens + prior) / (self.promised + prior)


@dataclass(slots=True)
class _Trial:
    """A trial of ``goal`` tokens in progress: its forwards, and the tokens and seconds of those that count."""

    arm: Arm
    goal: float
    forwards: int = 0
    tokens: float = 0.0
    seconds: float = 0.0


class Controller:
    """Chooses the arm of the next forwards.

    Args:
        constants: of drafting.
        arms: the arms to choose from; one of them is ``NONE``.
    """

    def __init__(self, constants: DraftingConstants, arms: frozenset[Arm]) -> None:
        self._constants = constants
        self._records = {arm: _Record() for arm in arms}
        self._expected: Mapping[Arm, float] = {}  # of the last plan; empty while too few forwards have been seen
        self._seconds, self._forwards = 0.0, 0
        self._usual = Arm.NONE
        self._trial: _Trial | None = None

    @property
    def arm(self) -> Arm:
        """The arm that is on; during a trial, the one that is tried."""
        return self._usual if self._trial is None else self._trial.arm

    @property
    def correction(self) -> float:
        """Measured over expected rate of the arm that is on."""
        return self._records[self.arm].correction(self._constants.trial_tokens)

    def rate_of(self, arm: Arm) -> float:
        """Corrected tokens per second of an arm at the load of the last plan; 0 while it is not known."""
        return self._corrected(self._expected).get(arm, 0.0)

    def choose(self, expected: Mapping[Arm, float], sequences: int) -> Arm:
        """Choose the arm by expected tokens per second, or begin a trial.

        Args:
            expected: arm -> expected tokens per second, uncorrected.
            sequences: number of running sequences.
        """
        self._expected = expected if self._forwards >= 2 * self._constants.uncounted else {}
        if self._trial is not None:
            return self.arm
        rates = self._corrected(expected)
        usual = self._usual if self._usual in rates else Arm.NONE
        best = max(rates, key=rates.__getitem__, default=usual)
        if rates.get(best, 0.0) > (1 + self._constants.least_gain) * rates.get(usual, 0.0):
            usual = best
        self._usual = usual
        if self._expected:
            self._begin_trial(rates, self._constants.trial_tokens * sequences)
        return self.arm

    def record(self, tokens: float, seconds: float) -> bool:
        """Count a step of the arm that is on.

        Args:
            tokens: output tokens.
            seconds: of the step, the share of its prefill left out.

        Returns:
            Whether it ended a trial, so that windows have to be planned at once.
        """
        self._seconds += seconds
        self._forwards += 1
        trial, record = self._trial, self._records[self.arm]
        if trial is None:
            if self._expected:
                self._add(record, tokens, seconds, self._constants.counts_kept)
            return False
        trial.forwards += 1
        if trial.forwards > self._constants.uncounted:
            trial.tokens, trial.seconds = trial.tokens + tokens, trial.seconds + seconds
        if trial.tokens < trial.goal:
            return False
        self._add(record, trial.tokens, trial.seconds, 0.5)
        self._trial = None
        return True

    def _add(self, record: _Record, tokens: float, seconds: float, kept: float) -> None:
        """Add tokens in so many seconds of the arm that is on, and keep a share of the earlier ones."""
        record.known_at, record.tokens = self._seconds, kept * record.tokens + tokens
        record.promised = kept * record.promised + seconds * self._expected.get(self.arm, 0.0)

    def _corrected(self, expected: Mapping[Arm, float]) -> dict[Arm, float]:
        """Corrected tokens per second of the arms that can run."""
        prior, usual = self._constants.trial_tokens, self._usual
        unknown = max(1.0, self._records[usual].correction(prior))  # all forwards may be faster than the table says
        rates = {
            arm: expected[arm] * (unknown if record.known_at is None else record.correction(prior))
            for arm, record in self._records.items()
            if expected.get(arm, 0.0) > 0
        }
        if Arm.HISTORY in rates and self._records[Arm.HISTORY].known_at is None and usual == Arm.HISTORY_AND_MASKS:
            rates[Arm.HISTORY] = rates[usual]  # it pays together with masks, so it may pay alone
        return rates

    def _begin_trial(self, rates: Mapping[Arm, float], goal: float) -> None:
        """Begin the trial of the arm that has waited longest, among those within their budgets."""
        constants, best = self._constants, rates[self._usual]
        waits = dict[Arm, float]()
        for arm, rate in rates.items():
            known_at = self._records[arm].known_at
            # Even an equal arm costs a little, since windows change.
            lost = goal / rate * max(constants.least_gain, 1 - rate / best)
            waited = self._seconds - (known_at or 0.0)
            is_new = known_at is None and rate >= constants.near * best
            if arm != self._usual and (is_new or lost <= constants.trial_share * waited):
                waits[arm] = float("inf") if is_new else waited
        if waits:
            self._trial = _Trial(arm=max(waits, key=waits.__getitem__), goal=goal)
