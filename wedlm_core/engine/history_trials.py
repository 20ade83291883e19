"""When drafts from history are asked for: by the seconds that tokens take with them and without. Torch-free.

What a draft brings can be estimated, but not what all of them do to the steps of an engine: sequences end at other
times, windows hold fewer masks, the host does more. So the engine decodes with them for some forwards, now and then,
and compares, for as long as it takes to tell the difference from chance. What a trial says counts beside what those
before it said. Trials that fail come ever more seldom.
"""

from __future__ import annotations

import math

from wedlm_core.engine.windows.comparison import Arms, Belief, Comparison, Forwards, octave

__all__ = ["Trials"]

_AT_FIRST = 128  # forwards with drafts at the beginning, which learn how far to trust them; then they are compared
_ENOUGH = 1024, 48  # sequences of these forwards together, and forwards, of which it is enough
_TRIED = 192  # of a trial at most: until then it ends as soon as the difference is clear
_UNCOUNTED = 16  # of a phase: windows have yet to follow, texts are taken in, kernels loaded
_HOPELESS = 6  # of a trial, after which it ends if none of them gained anything
_IDLE = 48  # in a row that gained nothing, after which drafts that paid, or gained in a trial, are no longer asked for
_PAUSE, _LONGEST_PAUSE = 192, 4096  # forwards without, twice as many after each trial that fails
_TRIAL_SHARE = 0.003  # of the time that trials may cost: a pause is as much longer
_MOST_AFFORDED = 4 * _LONGEST_PAUSE  # forwards of such a pause at most: only small models have trials as dear
_CHECK = 128  # forwards without at most, now and then where they pay, to compare anew
_CHECKED, _MOST_CHECKED = 256, 2048  # of so many forwards with drafts, at first and later
_BASELINE = 96  # forwards of a pause before a trial that are recorded: of more nothing is kept
_COUNTED = 12  # forwards either way that a difference takes to be clear
# Forwards of a trial before it fails: how far drafts are to be trusted is learned in it, and in the first one, for
# which there is little text that could repeat, not soon.
_GIVEN_UP, _FIRST_GIVEN_UP = 48, 128
_PRIOR = 0.3  # standard error of the logarithm of seconds per token with drafts over those without, before any trial
_REMEMBERED = 1 << 16  # forwards after which what trials said counts e times less: of pauses more than of trials
_MACHINE = 0.03  # and of each comparison, besides that of its forwards: machines that are shared change their speed
# Standard errors by which it is clear that drafts pay, and that they do not: a trial that fails takes time for nothing.
_SURE, _FUTILE = 2.0, 1.5
_LIKELY = 1.0  # by which they pay in a check, for the next one to come later: half of the time they would be missed
_CLEAR = 3.0  # by which drafts pay whatever was found before, or lose so much that no trial has to go on
_VAGUE = 0.2  # standard error from which on nothing is clear: some forward was disturbed
_UNKNOWN = Belief.unknown(_PRIOR, remembered=_REMEMBERED)  # nothing changes it
_PAYS = math.log(0.98)  # of seconds per token with drafts over those without, at most: what they save less is chance
# Where a trial ends however little was learned by then, as no masks are forwarded in it, and these may bring several
# times as much: the same, at least, and tokens of a sequence and forward, at most, though drafts were bought.
_LOSES_MUCH, _BRINGS_LITTLE = math.log(1.3), 1.25


class Trials:
    """Says for each forward whether drafts are asked for behind it; begins with some that are.

    Attributes:
        asks: behind the forward that comes next.
    """

    def __init__(self) -> None:
        self.asks = True
        self._is_steady = True  # the drafts have shown to pay, or nothing is known yet
        self._left, self._passed = _AT_FIRST, 0  # forwards of this phase to come, and that were
        self._pause, self._checked = _PAUSE, _CHECKED
        self._idle, self._has_gained = 0, False  # forwards in a row without any gain; one of this phase had some
        self._spent_seconds, self._spent_tokens = 0.0, 0  # in this phase
        self._brought = 0.0  # tokens of a sequence, over its forwards that count
        self._carried = 0.0, 0  # seconds of steps in which none decoded, and rows of prefill
        self._decided = 0  # comparisons that were, the first of them with the first forwards
        self._age = 0  # forwards so far
        self._at_first: int | None = 0  # sequences of the first forwards together; None behind them
        self._size = 0  # octave of the last forward's sequences
        self._known: dict[int, Belief] = {}  # by that
        self._arms: dict[int, Arms] = {}  # likewise
        self._sizes: dict[int, int] = {}  # forwards of this phase, likewise

    def record(self, seconds: float, tokens: int, sequences: int, prefill_rows: int = 0) -> None:
        """Take in a forward, behind which the next one begins.

        Args:
            seconds: of the whole step.
            tokens: of output.
            sequences: that decoded in it.
            prefill_rows: of prompts that were read in it.
        """
        seconds, prefill_rows = seconds + self._carried[0], prefill_rows + self._carried[1]
        self._carried = (0.0, 0) if sequences else (seconds, prefill_rows)
        if not sequences:
            return
        size = self._size = octave(sequences, self._size)
        arms = self._arms.setdefault(size, Arms())
        self._sizes[size] = self._sizes.get(size, 0) + 1
        self._passed, self._left, self._idle = self._passed + 1, self._left - 1, self._idle + 1
        self._age += 1
        self._spent_seconds, self._spent_tokens = self._spent_seconds + seconds, self._spent_tokens + tokens
        counts = self._passed > _UNCOUNTED
        if counts:
            arms.arm(self.asks).add(seconds, tokens, prefill_rows)
            self._brought += tokens / sequences
        if self._at_first is not None:
            self._at_first += sequences
        ends = self._left <= 0 or self._is_hopeless or self._is_enough
        if ends or (counts and self._compares and self._is_clear(size, arms.compare(_COUNTED))):
            self._decide(max(self._sizes, key=self._sizes.__getitem__))

    def _is_clear(self, size: int, found: Comparison | None) -> bool:
        """Whether it is more than chance that drafts pay, or do not."""
        if found is None or found.error > _VAGUE:
            return False
        known = self._with(self._known.get(size, _UNKNOWN), found)
        least = _FIRST_GIVEN_UP if self._decided <= 1 else _GIVEN_UP
        brings_little = self._brought < _BRINGS_LITTLE * (self._passed - _UNCOUNTED)
        early = self.asks and self._passed < least and not (brings_little and _loses_much(known))
        return _pays(known, _SURE) or (_fails(known) and not early)

    @staticmethod
    def _with(known: Belief, found: Comparison | None) -> Belief:
        """What is known once this is."""
        if found is None or not math.isfinite(found.error):
            return known
        return known.after(found.ratio, math.hypot(found.error, _MACHINE))

    def rest(self) -> int:
        """How many forwards tell nothing from here on, as they are far from the next trial; they are counted then."""
        if self.asks or self._is_steady or self._left <= _BASELINE:
            return 0
        far, self._left = self._left - _BASELINE, _BASELINE
        self._age += far
        return far

    @property
    def _compares(self) -> bool:
        """Whether this phase is a trial, or checks whether drafts still pay: it may end before its time."""
        return self.asks != self._is_steady and self._passed > _UNCOUNTED + _COUNTED

    @property
    def _is_enough(self) -> bool:
        """Whether the first forwards had so many sequences that fewer of them tell as much."""
        sequences, forwards = _ENOUGH
        return self._at_first is not None and self._at_first >= sequences and self._passed >= forwards

    @property
    def _is_hopeless(self) -> bool:
        return self.asks and self._idle >= (_IDLE if self._is_steady or self._has_gained else _HOPELESS)

    @property
    def is_beginning(self) -> bool:
        """Whether these are the first forwards: what is learned in them is not of history alone."""
        return self._at_first is not None

    def gained(self, seconds: float) -> None:
        """Take in how much time drafts that were bought are thought to spare: what never does, no one has to try."""
        if seconds > 0:
            self._idle, self._has_gained = 0, True

    def _decide(self, size: int) -> None:
        """Begin the next phase, by forwards of as many sequences as most of this phase had."""
        hopeless, checks = self._is_hopeless, not self.asks and self._is_steady  # it checks whether they still pay
        if self.asks and self._is_steady and not hopeless:  # to compare anew
            self._begin(asks=False, forwards=_CHECK)
            return
        if not self.asks and not self._is_steady:
            self._begin(asks=True, forwards=_TRIED)
            return
        known = self._learned(size)
        self._decided += 1
        if not hopeless and _pays(known) and self._decided == 1:
            # The first forwards had masks beside these drafts. From here on none have: that is to be tried.
            self._is_steady = False
            self._begin(asks=True, forwards=_TRIED)
            self._has_gained = True  # in the first forwards: some without any gain do not end it
            return
        if not hopeless and _pays(known):
            self._checked = min(2 * self._checked, _MOST_CHECKED) if checks and _pays(known, _LIKELY) else _CHECKED
            self._is_steady, self._pause = True, _PAUSE
            self._begin(asks=True, forwards=self._checked)
            return
        clear = hopeless or _fails(known)
        pause = max(self._pause, self._affordable(self._arms[size].without) if clear and not self._is_steady else 0)
        self._is_steady = False
        self._begin(asks=False, forwards=pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _learned(self, size: int) -> Belief:
        """What is known once the phase that ends is. What is clear by it alone is not outvoted: jobs change."""
        found = self._arms[size].compare()
        known, alone = self._with(self._known.get(size, _UNKNOWN), found), self._with(_UNKNOWN, found)
        if _pays(known) != _pays(alone) and (_pays(alone, _CLEAR) or _fails(alone)):
            known = alone
        if self._decided:  # at first there is little that could repeat
            self._known[size] = known
        return known

    def _affordable(self, without: Forwards) -> int:
        """Forwards without drafts that a trial which took as long as this one did may be followed by.

        No more than twice those so far: a job that begins has little text yet that could repeat.
        """
        if not without.tokens or not without.seconds:
            return 0
        lost = self._spent_seconds - self._spent_tokens * without.seconds / without.tokens
        paid = int(lost / _TRIAL_SHARE / (without.seconds / without.count))
        return min(_MOST_AFFORDED, 2 * self._age, paid)

    def _begin(self, *, asks: bool, forwards: int) -> None:
        self._at_first = None
        self.asks, self._left, self._passed, self._idle, self._has_gained = asks, forwards, 0, 0, False
        self._spent_seconds, self._spent_tokens, self._brought = 0.0, 0, 0.0
        self._sizes.clear()
        # Of what was found at the beginning of a job less is kept: there is more text by now that could repeat.
        faded = round(forwards * max(1.0, _REMEMBERED / (2 * self._age + 1)))
        for known in self._known.values():
            known.fade(faded)
        # What was long before has no part in it: the machine may have been faster or slower then.
        if not asks or not self._is_steady:
            for arms in self._arms.values():
                arms.forget(with_drafts=asks)


def _pays(known: Belief, errors: float = 0.0) -> bool:
    """Whether drafts pay, by so many standard errors at least."""
    return known.value + errors * known.error < _PAYS


def _fails(known: Belief) -> bool:
    """Whether it is clear that they do not."""
    return known.value - _FUTILE * known.error > _PAYS


def _loses_much(known: Belief) -> bool:
    """Whether it is clear that they take far longer: what is yet to be learned of them will not make up for it."""
    return known.value - _CLEAR * known.error > _LOSES_MUCH
