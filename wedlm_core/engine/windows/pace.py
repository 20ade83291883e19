"""Say when windows are planned anew: plans take a small share of the time, whatever forwards take. Torch-free.

A plan takes as long as it does, a third of a millisecond and more, whether a forward takes a tenth of one or a hundred.
So plans have a budget in seconds: each step adds a share of what it took, and a plan takes out what it took. What was
saved lets plans follow each other for a while where a job changes; where forwards are long, the budget never binds.
Some plans are due whatever was saved. What they take beyond it is owed, but never more than a few plans: else a load
that makes such plans due again and again would leave the next one without any.
"""

from __future__ import annotations

import math

from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

__all__ = ["Pace"]

_SAVED = 16  # plans at most that may follow each other after a time of fewer
_OWED = 2  # plans at most that are owed
_SECOND_LOOK = 4  # patience behind a plan that was due at once: more plans would cost what they are made to tell
_STEP_GAIN, _PLAN_GAIN = 0.25, 0.05  # weight in the mean of the steps since the last plan, and of that plan


class Pace:
    """Counts forwards between plans, and seconds of both.

    Attributes:
        age: forwards since the last plan.
        wait: forwards from it to the next.
        patience: how many times as long plans wait, as they change nothing.
        seconds: of steps that were not counted yet. Who times steps adds to them.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self.age, self.wait, self.patience = 0, 0, 1
        self.seconds = 0.0
        self._counted = 0  # forwards that these seconds were of, when they were counted last
        self._plan_seconds, self._step_seconds = 0.0, 0.0  # in the mean, as of late; 0 before any was timed
        self._plans = 0  # whole plans that were timed
        self._saved = 0.0  # seconds that plans may still take
        self._between = 0  # forwards between the last two plans
        self._interval = tuning.correction_interval
        self._is_trying = False  # what the last plan has begun is to end in time
        self._is_hurried = False  # the next plan is due for another reason than what was learned

    # ---- seconds --------------------------------------------------------------------------------------

    def record_plan(self, seconds: float, *, whole: bool) -> None:
        """Take in what a plan took.

        Args:
            seconds: of it.
            whole: whether it was made anew, and is what plans are taken to last. The first loads what others find.
        """
        self._plans += whole
        if self._plans <= 1 or not 0 < seconds < math.inf:
            return
        most, known = self._tuning.disturbed, self._plan_seconds
        if known:
            seconds = min(seconds, most * known)
        else:
            known = seconds
            self._saved = _SAVED * known  # a job that begins has much to learn
        if whole:
            known = min(known, most * seconds)  # those before this one were disturbed
            self._plan_seconds = known + max(_PLAN_GAIN, 1 / self._plans) * (seconds - known)
        self._saved = max(self._saved - seconds, -_OWED * self._plan_seconds)

    def _save(self) -> None:
        """Let plans have their share of the seconds since this was asked last."""
        steps, seconds, self.seconds = self.age - self._counted, self.seconds, 0.0
        self._counted = self.age
        if steps <= 0 or not 0 < seconds < math.inf:
            return
        each = seconds / steps
        known = self._step_seconds or each
        self._step_seconds = known + _STEP_GAIN * (each - known)
        self._saved = min(self._saved + self._tuning.plan_share * seconds, _SAVED * self._plan_seconds)

    def seconds_of(self, plans: int) -> float:
        """What so many plans take; 0 before any was timed."""
        return plans * self._plan_seconds

    def forwards_of(self, plans: int) -> float:
        """Forwards that take as long as so many plans; 0 while nothing is known of either."""
        return self.seconds_of(plans) / self._step_seconds if self._step_seconds else 0.0

    # ---- forwards -------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether it is time to plan; what is tried ends in time, whatever plans have taken."""
        return self.age >= self.wait and (self.affords_plan() or self._is_trying)

    def affords_plan(self) -> bool:
        """Whether a plan may be made that was not waited for: nothing is owed, or nothing is known of forwards."""
        self._save()
        return self._saved >= 0 or not self._step_seconds

    @property
    def is_timed(self) -> bool:
        """Whether the last forward is one of those whose seconds correct the table's: twice a plan or so."""
        return not self.age % self._interval

    def begin(self) -> int:
        """Begin a plan; forwards since the last one."""
        self._save()
        self._between, self.age, self._counted = self.age, 0, 0
        return self._between

    def hurry(self) -> None:
        """Say that what the last plan was for has changed: one is due at once, and the next one not long behind it."""
        self.wait, self._is_trying, self._is_hurried = 0, True, True

    def follow(self, least: int, *, same: bool, masks: bool, tried: bool, visits: int = 0) -> None:
        """Say when the next plan is due.

        Args:
            least: forwards between plans at least.
            same: whether the plan changed no windows: the next ones are rarer then.
            masks: whether there are any in these windows.
            tried: whether something is tried out that is to end with the next plan.
            visits: forwards that a comparison has yet to see.
        """
        most = self._tuning.most_patience if masks else self._tuning.most_patience_alone
        most = max(most, int(self.forwards_of(1) / self._tuning.quiet_share / least))
        if self._is_hurried:
            self.patience = min(self.patience, _SECOND_LOOK)
        else:
            self.patience = min(2 * self.patience, most) if same else 1
        self._interval = max(self._tuning.correction_interval * self.patience, self._between // 2)
        self.wait = max(visits, least) if tried or visits else least * self.patience
        self._is_trying, self._is_hurried = tried or visits > 0, False
