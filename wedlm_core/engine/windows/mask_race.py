"""Correct what masks are expected to bring by what they brought, where they come close to none. Torch-free.

Acceptance, rows and the host's time are estimated each by itself, and together they flatter masks, or do not, by some
percent. So where masks and none are expected to be about as fast, the planner decodes with what comes second for some
forwards now and then (a visit), and compares the seconds of tokens with those before and behind it: a machine that
becomes faster or slower meanwhile changes both. What the comparison says beyond what was expected is the bias; from
then on what masks are expected to bring is corrected by it. Each comparison has an error, so the bias is filtered
(R. E. Kalman, 1960, of one state that drifts).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

from wedlm_core.engine.windows.comparison import Arms
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

__all__ = ["MaskRace"]

_SETTLING = 8  # forwards after a change that do not count: windows have yet to follow
_COUNTED = 40, 24  # forwards without masks that a comparison takes, and with: these have many more tokens
_LEAST_COUNTED = 12  # forwards either way of which a comparison tells something
_LATE = 4  # forwards of a visit that are not known yet as it ends, where forwards overlap
_PRIOR_ERROR = 0.15  # of the logarithm of a rate with masks over one without, before any comparison
_DRIFT = 0.03  # by which that changes from one visit to the next
_ELSEWHERE = 0.05  # by which it differs between numbers of sequences
# Error of a comparison besides that of its forwards, with forwards behind the visit and without: machines that are
# shared change their speed.
_MACHINE = 0.03, 0.1
_UNLIKELY = 2.5  # standard errors at which what a comparison finds is clipped: something else was done meanwhile
# Standard errors within which what comes second may well be first: masks where none are, and none where masks are,
# which cost less to visit and must not be slower.
_BAND = 1.25, 3.0
_BEFORE = 64  # forwards before the first visit: how often masks are right is not known sooner
_FIRST_SHARES = 6  # times the share of the time that the first visit may cost: later ones tell less
_LEAST_COST = 0.04  # of a visit, as a logarithm of rates: what is expected of what comes second may be wrong
_TOKENS = 1, 4  # of a sequence and forward without masks and with, before a visit tells


class _Phase(Enum):
    """Of a comparison: windows as planned, those that come second, and as planned again to compare."""

    WATCHING = auto()
    VISITING = auto()
    RETURNED = auto()


@dataclass(slots=True)
class _Bias:
    """What is known of about as many sequences, beside drafts from elsewhere or without.

    Attributes:
        value: the logarithm of what masks bring over what is expected of them.
        variance: of that.
        forwards: that were seen.
        visited: tokens of the last visit; 0 before the first.
        since: tokens since then.
    """

    value: float = 0.0
    variance: float = _PRIOR_ERROR**2
    forwards: int = 0
    visited: float = 0.0
    since: float = 0.0

    def is_open(self, expected: float, masks: bool) -> bool:
        """Whether what comes second may be first all the same.

        Args:
            expected: logarithm of the rate with masks over the one without.
            masks: whether what comes first has some.
        """
        return abs(expected) <= _BAND[masks] * math.sqrt(self.variance + _DRIFT**2)

    def may_visit(self, expected: float, share: float, tokens: float) -> bool:
        """Whether a visit may begin that costs the logarithm ``expected`` of a rate.

        Args:
            expected: logarithm of the rate with masks over the one without.
            share: of the time that visits may cost.
            tokens: of the first visit, about.
        """
        cost = max(abs(expected), _LEAST_COST)
        if self.visited:
            return self.since * share >= self.visited * cost
        return self.forwards >= _BEFORE and self.since * _FIRST_SHARES * share >= tokens * cost

    def learn(self, found: float, error: float) -> None:
        """Take in a comparison."""
        variance = self.variance + _DRIFT**2
        gain = variance / (variance + error * error)
        most = _UNLIKELY * math.sqrt(variance + error * error)
        self.value += gain * min(max(found - self.value, -most), most) if gain else 0.0
        self.variance = (1 - gain) * variance


class MaskRace:
    """Compares forwards with masks and without, and says which visits it takes.

    Args:
        tuning: constants.

    Attributes:
        visits: forwards that are left of the visit; 0 where there is none.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._share = tuning.visit_share
        self.visits = 0
        self._phase = _Phase.WATCHING
        self._first = False  # whether what comes first has masks, of a comparison
        self._is_given_up = False  # the comparison has to end
        self._expected = 0.0  # in the last plan, where it matters
        self._masks: bool | None = None  # whether the windows have masks; None where few have, or it does not matter
        self._settled = 0  # forwards since that changed
        self._elsewhere = False  # drafts came from elsewhere too, in the last forward
        # By the binary length of the number of sequences, and by whether drafts came from elsewhere too.
        self._biases: dict[tuple[int, bool], _Bias] = {}
        self._arms: dict[tuple[int, bool], Arms] = {}
        self._visited: dict[tuple[int, bool], int] = {}  # forwards of the visit that count
        self._forwards, self._tokens = 0, 0.0  # since the last plan
        self._carried = 0.0, 0  # seconds of steps in which none decoded, and rows of prefill

    def bias(self, sequences: int) -> float:
        """The logarithm of commits per second with masks over what is expected of them."""
        return self._of(sequences, self._elsewhere).value

    def arrive(self, sequences: int) -> bool:
        """Say that windows are planned anew, which ends a visit; True where :meth:`learn` is due.

        Args:
            sequences: that the plan is for.
        """
        self._count(sequences)
        if self._phase is _Phase.VISITING:
            self._is_given_up = self.visits > _LATE
            self._phase, self._masks, self.visits = _Phase.RETURNED, None, 0
        counted = self._has_counted and self._masks is self._first
        return self._phase is _Phase.RETURNED and (counted or self._is_given_up)

    def learn(self, sequences: int, expected: float | None) -> None:
        """Compare, if there were forwards enough.

        Args:
            sequences: that the plan is for.
            expected: logarithm of commits per second with masks over those without, before correction.
        """
        machine = _MACHINE[self._is_given_up]
        self._phase, self._masks, self._is_given_up = _Phase.WATCHING, None, False
        key = max(self._visited, key=self._visited.__getitem__, default=None)
        if expected is None or key is None or key[0] != sequences.bit_length():
            return
        found = self._arms[key].compare(_LEAST_COUNTED)
        if found is not None:
            self._of(sequences, key[1]).learn(-found.ratio - expected, math.hypot(found.error, machine))

    def follow(self, sequences: int, expected: float | None, masks: bool | None) -> None:
        """Take in a plan.

        Args:
            sequences: that it is for.
            expected: logarithm of commits per second with masks over those without, corrected; None if unknown.
            masks: whether its windows have masks; None where few have.
        """
        if self._phase is _Phase.RETURNED:
            self._is_given_up = self._is_given_up or masks is not self._first
            if self._masks is not masks:
                self._masks, self._settled = masks, 0
            return
        known = self._of(sequences, self._elsewhere)
        if expected is None or masks is None or not known.is_open(expected, masks):
            masks, expected = None, 0.0
        self._expected = expected
        if masks is not self._masks:
            self._masks, self._settled = masks, 0
            self._forget(masks)

    def is_due(self, sequences: int) -> bool:
        """Whether a visit to what comes second is due: it comes close, and enough is known of what comes first."""
        if not self._share or self._phase is not _Phase.WATCHING or not self._has_counted:
            return False
        self._count(sequences)
        there = not self._masks
        tokens = (_SETTLING + _COUNTED[there]) * _TOKENS[there] * sequences
        return self._of(sequences, self._elsewhere).may_visit(self._expected, self._share, float(tokens))

    @property
    def is_comparing(self) -> bool:
        """Whether there is a visit, or was one of which nothing was learned yet."""
        return self._phase is not _Phase.WATCHING

    def begin(self, sequences: int) -> None:
        """Begin a visit."""
        known = self._of(sequences, self._elsewhere)
        known.since = known.visited = 0.0
        self._first = bool(self._masks)
        self._phase, self._masks, self._settled = _Phase.VISITING, not self._first, 0
        self.visits = _SETTLING + _COUNTED[self._masks]
        self._visited.clear()
        self._forget(self._masks)

    def record(self, seconds: float, tokens: float, sequences: int, prefill_rows: int, *, elsewhere: bool) -> None:
        """Take in a step.

        Args:
            seconds: of all of it.
            tokens: of output.
            sequences: that decoded in it.
            prefill_rows: of prompts that were read in it.
            elsewhere: whether drafts came from elsewhere as well.
        """
        seconds, prefill_rows = seconds + self._carried[0], prefill_rows + self._carried[1]
        self._carried = (0.0, 0) if sequences else (seconds, prefill_rows)
        if self.visits:
            self.visits -= 1
        if not sequences:
            return
        self._elsewhere, self._settled, self._tokens = elsewhere, self._settled + 1, self._tokens + tokens
        self._forwards += 1
        if self._masks is None or self._settled <= _SETTLING:
            return
        key = sequences.bit_length(), elsewhere
        if key not in self._arms:
            self._arms[key] = Arms()
        self._arms[key].arm(self._masks).add(seconds, tokens, prefill_rows)
        if self._phase is _Phase.VISITING:
            self._visited[key] = self._visited.get(key, 0) + 1

    def _count(self, sequences: int) -> None:
        """Hand what was seen since the last plan to the bias of its like."""
        known = self._of(sequences, self._elsewhere)
        known.forwards += self._forwards
        if self._phase is _Phase.VISITING:
            known.visited += self._tokens
        else:
            known.since += self._tokens
        self._forwards, self._tokens = 0, 0.0

    @property
    def _has_counted(self) -> bool:
        """Whether enough is known of the windows as they are."""
        return self._masks is not None and self._settled >= _SETTLING + _COUNTED[self._masks]

    def _forget(self, masks: bool | None) -> None:
        if masks is not None:
            for arms in self._arms.values():
                arms.forget(masks)

    def _of(self, sequences: int, elsewhere: bool) -> _Bias:
        key = sequences.bit_length(), elsewhere
        if key not in self._biases:
            alike = (item for item in self._biases.items() if item[0][1] == elsewhere)
            near = min(alike, key=lambda item: abs(item[0][0] - key[0]), default=None)
            self._biases[key] = _Bias() if near is None else _Bias(
                value=near[1].value, variance=near[1].variance + _ELSEWHERE**2
            )  # fmt: skip
        return self._biases[key]
