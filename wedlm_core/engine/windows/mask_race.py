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

from wedlm_core.engine.windows.comparison import Arms, Belief, octave
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

__all__ = ["MaskRace"]

_SETTLING = 8  # forwards after a change that do not count: windows have yet to follow
_COUNTED = 40, 24  # forwards without masks that a comparison takes, and with: these have many more tokens
_MOST_COUNTED = 96  # of either where plans take as long as many forwards
_FAR, _COUNTED_FAR = 0.15, 16  # logarithm of rates from which fewer forwards of a visit tell as much, and how many
_LEAST_COUNTED = 10  # forwards either way of which a comparison tells something
_LATE = 4  # forwards of a visit that are not known yet as it ends, where forwards overlap
_PRIOR_ERROR = 0.15  # of the logarithm of a rate with masks over one without, before any comparison
_UNSEEN = 4  # plans behind a visit without any forward to compare, after which it is given up: others run beside
_REMEMBERED = 16384  # forwards after which what is known of it counts e times less
_ELSEWHERE = 0.05  # by which it differs between numbers of sequences
# Error of a comparison besides that of its forwards, with forwards behind the visit and without: machines that are
# shared change their speed.
_MACHINE = 0.03, 0.1
# Standard errors within which what comes second may well be first: masks where none are, and none where masks are,
# which cost less to visit and must not be slower.
_BAND = 1.25, 3.0
_RECORDED = 128  # forwards before a visit from which on they are recorded: to compare all would take 1% of the smallest
_BEFORE = 64  # forwards before the first visit: how often masks are right is not known sooner
_FIRST_SHARES = 10  # times the share of the time that the first visit may cost: later ones tell less
_LEAST_COST = 0.04  # of a visit, as a logarithm of rates: what is expected of what comes second may be wrong
# Committed per sequence and forward, without masks and with: for what the first visit costs, and for how many forwards
# there are until the next one.
_TOKENS = 1, 4


class _Phase(Enum):
    """Of a comparison: windows as planned, those that come second, and as planned again to compare."""

    WATCHING = auto()
    VISITING = auto()
    RETURNED = auto()


@dataclass(slots=True)
class _Bias(Belief):
    """What is known of about as many sequences, beside drafts from elsewhere or without.

    It is of the logarithm of what masks bring over what is expected of them; beside drafts from elsewhere, where they
    are expected to bring nothing, or to lose as much as alone, over that.

    Attributes:
        forwards: that were seen.
        visited: tokens of the last visit; None before the first.
        since: tokens since then.
    """

    prior: float = _PRIOR_ERROR
    value: float = 0.0
    variance: float = _PRIOR_ERROR**2
    remembered: int = _REMEMBERED
    forwards: int = 0
    visited: float | None = None
    since: float = 0.0

    def is_open(self, expected: float, masks: bool) -> bool:
        """Whether what comes second may be first all the same.

        Args:
            expected: logarithm of the rate with masks over the one without.
            masks: whether what comes first has some.
        """
        return abs(expected) <= _BAND[masks] * self.error

    def tokens_left(self, expected: float, share: float, tokens: float, overhead: float) -> float:
        """Tokens until a visit may begin that costs the logarithm ``expected`` of a rate; none where it may by now.

        Args:
            expected: logarithm of the rate with masks over the one without.
            share: of the time that visits may cost.
            tokens: of the first visit, about.
            overhead: tokens that what a visit takes besides would have brought.
        """
        cost = max(abs(expected), _LEAST_COST)
        if self.visited is not None:
            return max(0.0, (self.visited * cost + overhead) / share - self.since)
        early = max(0, _BEFORE - self.forwards)  # forwards, each of a token at least
        return max(float(early), (tokens * cost + overhead) / (_FIRST_SHARES * share) - self.since)

    def see(self, forwards: int, tokens: float) -> None:
        """Count forwards that are not of a visit."""
        self.forwards, self.since = self.forwards + forwards, self.since + tokens
        self.fade(forwards)


class MaskRace:
    """Compares forwards with masks and without, and says which visits it takes.

    Args:
        tuning: constants.

    Attributes:
        visits: forwards that are left of the visit; 0 where there is none.
        elsewhere: whether drafts came from elsewhere too, in the last forward.
        overhead: forwards that take as long as what a visit takes besides its own, such as plans.
    """

    def __init__(self, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._share = tuning.visit_share
        self.visits, self.overhead = 0, 0.0
        self._phase = _Phase.WATCHING
        self._first = False  # whether what comes first has masks, of a comparison
        self._is_given_up = False  # the comparison has to end
        self._unseen = 0  # plans in a row behind a visit before which there was no forward that counts
        self._expected = 0.0  # in the last plan, where it matters
        self._masks: bool | None = None  # whether the windows have masks; None where few have, or it does not matter
        self._settled = 0  # forwards since that changed
        self.elsewhere = False
        self._biases: dict[tuple[int, bool], _Bias] = {}  # by the octave of sequences, and by drafts from elsewhere
        self._visited = _Bias()  # that of the visit
        self._key = self._compared = 0, False  # of the last forward, and of those that are compared
        self._arms = Arms()  # of forwards of that key
        self._forwards, self._tokens = 0, 0.0  # since the last plan
        self._carried = 0.0, 0  # seconds of steps in which none decoded, and rows of prefill
        self._rest = 0  # forwards to come that are only counted, as no visit is due soon

    def bias(self, sequences: int, *, elsewhere: bool | None = None) -> float:
        """The logarithm of commits per second with masks over what is expected of them.

        Args:
            sequences: that run.
            elsewhere: whether drafts come from elsewhere too; None as in the last forward.
        """
        return self._of(sequences, self.elsewhere if elsewhere is None else elsewhere).value

    def arrive(self, sequences: int) -> bool:
        """Say that windows are planned anew, which ends a visit; True where :meth:`learn` is due.

        Args:
            sequences: that the plan is for.
        """
        forwards = self._forwards
        self._count(sequences)
        if self._phase is _Phase.VISITING:
            self._is_given_up = self._is_given_up or self.visits > _LATE
            self._phase, self._masks, self.visits = _Phase.RETURNED, None, 0
            self._unseen = 0
        elif self._phase is _Phase.RETURNED:
            self._unseen = 0 if forwards else self._unseen + 1
            self._is_given_up = self._is_given_up or self._unseen > _UNSEEN
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
        found = self._arms.compare(_LEAST_COUNTED)
        if found is not None and expected is not None and self._of(sequences, self._compared[1]) is self._visited:
            self._visited.learn(-found.ratio - expected, math.hypot(found.error, machine))

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
        known = self._of(sequences, self.elsewhere)
        if expected is None or masks is None or not known.is_open(expected, masks):
            masks, expected = None, 0.0
        self._expected = expected
        if masks is not self._masks:
            self._masks, self._settled = masks, 0
            if masks is not None:
                self._arms.forget(masks)
        self._rest = self._forwards_left(sequences)

    def is_due(self, sequences: int) -> bool:
        """Whether a visit to what comes second is due: it comes close, and enough is known of what comes first."""
        if not self._share or self._phase is not _Phase.WATCHING or not self._has_counted:
            return False
        self._count(sequences)
        return not self._tokens_left(sequences)

    def _forwards_left(self, sequences: int) -> int:
        """Until forwards are to be recorded, or the next plan comes."""
        if self._masks is None or not self._share:
            return 1 << 30
        each = float(sequences * _TOKENS[self._masks])
        return max(0, int(self._tokens_left(sequences) / each) - _RECORDED)

    def _tokens_left(self, sequences: int) -> float:
        """Until the next visit."""
        tokens = float(self._length * _TOKENS[not self._masks] * sequences)
        overhead = self.overhead * _TOKENS[bool(self._masks)] * sequences
        return self._of(sequences, self.elsewhere).tokens_left(self._expected, self._share, tokens, overhead)

    @property
    def is_comparing(self) -> bool:
        """Whether there is a visit, or was one of which nothing was learned yet."""
        return self._phase is not _Phase.WATCHING

    @property
    def to_come(self) -> int:
        """Forwards that a visit, or what is compared with it behind it, has yet to see; 0 where there is none."""
        if self._phase is not _Phase.RETURNED or self._is_given_up:
            return self.visits
        return max(0, _SETTLING + self._counted(self._first) - self._settled)

    def begin(self, sequences: int) -> None:
        """Begin a visit."""
        self._visited, self._compared = self._of(sequences, self.elsewhere), self._key
        self._visited.since = self._visited.visited = 0.0
        self._first = bool(self._masks)
        self.visits = self._length
        self._phase, self._masks, self._settled = _Phase.VISITING, not self._first, 0
        self._arms.forget(self._masks)

    def turn(self, elsewhere: bool) -> None:
        """Say that drafts come from elsewhere too from now on, or no longer, whether forwards are recorded or not."""
        self.elsewhere, self._rest = elsewhere, 0

    def record(self, seconds: float, tokens: float, sequences: int, prefill_rows: int, *, elsewhere: bool) -> None:
        """Take in a step.

        Args:
            seconds: of all of it.
            tokens: of output.
            sequences: that decoded in it.
            prefill_rows: of prompts that were read in it.
            elsewhere: whether drafts came from elsewhere as well.
        """
        if self._rest and elsewhere is self.elsewhere:
            if sequences:
                self._rest, self._carried = self._rest - 1, (0.0, 0)
                self._forwards, self._tokens = self._forwards + 1, self._tokens + tokens
            return
        self._rest = 0
        seconds, prefill_rows = seconds + self._carried[0], prefill_rows + self._carried[1]
        self._carried = (0.0, 0) if sequences else (seconds, prefill_rows)
        is_over = self._phase is _Phase.VISITING and not self.visits  # it is of something else that no plan is for
        self.visits = max(0, self.visits - 1)
        if not sequences:
            return
        self._follow_key(octave(sequences, self._key[0]), elsewhere)
        self.elsewhere, self._settled, self._tokens = elsewhere, self._settled + 1, self._tokens + tokens
        self._forwards += 1
        if self._masks is None or self._settled <= _SETTLING or is_over or self._is_given_up:
            return
        self._arms.arm(self._masks).add(seconds, tokens, prefill_rows)

    def pause(self) -> None:
        """Say that forwards from now to the next plan are neither what comes first nor of a visit."""
        self._masks, self._settled = None, 0

    def _follow_key(self, about: int, elsewhere: bool) -> None:
        """Only forwards of about as many sequences, with the same sources of drafts, are compared."""
        key = about, elsewhere
        if key == self._key:
            return
        self._key, self._settled = key, 0
        if self._phase is _Phase.WATCHING:
            self._arms = Arms()
        elif key != self._compared:
            self._is_given_up = True

    def _count(self, sequences: int) -> None:
        """Hand what was seen since the last plan to the bias of its like."""
        if self._phase is _Phase.VISITING:
            self._visited.visited = (self._visited.visited or 0.0) + self._tokens
        else:
            self._of(sequences, self.elsewhere).see(self._forwards, self._tokens)
        self._forwards, self._tokens = 0, 0.0

    @property
    def _length(self) -> int:
        """Forwards of a visit to what comes second now."""
        return _SETTLING + (_COUNTED_FAR if abs(self._expected) > _FAR else self._counted(not self._masks))

    @property
    def _has_counted(self) -> bool:
        """Whether enough is known of the windows as they are."""
        return self._masks is not None and self._settled >= _SETTLING + self._counted(self._masks)

    def _counted(self, masks: bool) -> int:
        """Forwards that a comparison takes: so many that they cost what a visit takes besides, if that is more."""
        as_dear = int(self.overhead / max(abs(self._expected), _LEAST_COST))
        return max(_COUNTED[masks], min(_MOST_COUNTED, as_dear))

    def _of(self, sequences: int, elsewhere: bool) -> _Bias:
        key = octave(sequences, self._key[0]), elsewhere
        if key not in self._biases:
            alike = (item for item in self._biases.items() if item[0][1] == elsewhere)
            near = min(alike, key=lambda item: abs(item[0][0] - key[0]), default=None)
            self._biases[key] = _Bias() if near is None else _Bias(
                value=near[1].value, variance=near[1].variance + _ELSEWHERE**2
            )  # fmt: skip
        return self._biases[key]
