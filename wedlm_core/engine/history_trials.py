"""When drafts from history are asked for: by the seconds that tokens take with them and without. Torch-free.

What a draft brings can be estimated, but not what all of them do to the steps of an engine: sequences end at other
times, windows hold fewer masks, the host does more. So the engine decodes with them for some forwards, now and then,
and compares, for as long as it takes to tell the difference from chance. Trials that fail come ever more seldom.
"""

from __future__ import annotations

import math

from wedlm_core.engine.windows.comparison import Arms, Comparison

__all__ = ["Trials"]

_AT_FIRST = 128  # forwards with drafts at the beginning, which learn how far to trust them; then they are compared
_ENOUGH = 1024, 48  # sequences of these forwards together, and forwards, of which it is enough
_TRIED = 192  # of a trial at most: until then it ends as soon as the difference is clear
# With drafts: when the job begins, as kernels have yet to be loaded, and nothing is known of what to trust; and when a
# trial does, as windows have yet to follow.
_FIRST_UNCOUNTED, _UNCOUNTED = 16, 8
_HOPELESS = 6  # of a trial, after which it ends if none of them gained anything
_IDLE = 48  # in a row that gained nothing, after which drafts that paid, or gained in a trial, are no longer asked for
_PAUSE, _LONGEST_PAUSE = 192, 4096  # forwards without, twice as many after each trial that fails
_CHECK, _CHECK_UNCOUNTED = 128, 4  # forwards without at most, now and then where they pay, to compare anew
_CHECKED, _MOST_CHECKED = 512, 2048  # of so many forwards with drafts, at first and later
_BASELINE = 96  # forwards of a pause before a trial that are recorded: of more nothing is kept
_COUNTED = 12  # forwards either way that a difference takes to be clear
# Standard errors by which it is clear that drafts pay: in a trial, where each forward asks anew, and afterwards.
_CLEAR, _SURE = 3.0, 2.0
_FUTILE = 1.0  # standard errors by which it is clear that they do not: a trial that fails takes time for nothing
_VAGUE = 0.2  # standard error from which on nothing is clear: some forward was disturbed
_PAYS = math.log(0.96)  # of seconds per token with drafts over those without, at most: what they save less is chance


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
        self._carried = 0.0, 0  # seconds of steps in which none decoded, and rows of prefill
        self._at_first: int | None = 0  # sequences of the first forwards together; None behind them
        self._arms: dict[int, Arms] = {}  # by the binary length of the number of sequences
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
        size = sequences.bit_length()
        arms = self._arms.setdefault(size, Arms())
        self._sizes[size] = self._sizes.get(size, 0) + 1
        self._passed, self._left, self._idle = self._passed + 1, self._left - 1, self._idle + 1
        uncounted = _UNCOUNTED if self._at_first is None else _FIRST_UNCOUNTED
        counts = self._passed > (uncounted if self.asks else _CHECK_UNCOUNTED)
        if counts:
            arms.arm(self.asks).add(seconds, tokens, prefill_rows)
        if self._at_first is not None:
            self._at_first += sequences
        ends = self._left <= 0 or self._is_hopeless or self._is_enough
        if ends or (counts and self._compares and self._is_clear(arms.compare(_COUNTED))):
            self._decide(self._arms[max(self._sizes, key=self._sizes.__getitem__)])

    def _is_clear(self, found: Comparison | None) -> bool:
        """Whether it is more than chance that drafts pay, or do not."""
        if found is None or found.error > _VAGUE:
            return False
        return _pays(found, _CLEAR if self.asks else _SURE) or found.ratio - _FUTILE * found.error > _PAYS

    def rest(self) -> int:
        """How many forwards tell nothing from here on, as they are far from the next trial; they are counted then."""
        if self.asks or self._is_steady or self._left <= _BASELINE:
            return 0
        far, self._left = self._left - _BASELINE, _BASELINE
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

    def gained(self, seconds: float) -> None:
        """Take in how much time drafts that were bought are thought to spare: what never does, no one has to try."""
        if seconds > 0:
            self._idle, self._has_gained = 0, True

    def _decide(self, arms: Arms) -> None:
        """Begin the next phase, by forwards of as many sequences as most of this phase had."""
        hopeless, checks = self._is_hopeless, not self.asks and self._is_steady  # it checks whether they still pay
        if self.asks and self._is_steady and not hopeless:  # to compare anew
            self._begin(asks=False, forwards=_CHECK)
        elif not self.asks and not self._is_steady:
            self._begin(asks=True, forwards=_TRIED)
        elif not hopeless and _pays(arms.compare(), 0.0 if checks else _FUTILE):
            sure = checks and _pays(arms.compare(), _SURE)
            self._checked = min(2 * self._checked, _MOST_CHECKED) if sure else _CHECKED
            self._is_steady, self._pause = True, _PAUSE
            self._begin(asks=True, forwards=self._checked)
        else:
            self._is_steady = False
            self._begin(asks=False, forwards=self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _begin(self, *, asks: bool, forwards: int) -> None:
        self._at_first = None
        self.asks, self._left, self._passed, self._idle, self._has_gained = asks, forwards, 0, 0, False
        self._sizes.clear()
        if asks and not self._is_steady:  # what was before it has no part in a trial
            for arms in self._arms.values():
                arms.forget(with_drafts=True)


def _pays(found: Comparison | None, errors: float) -> bool:
    """Whether drafts pay, by so many standard errors at least."""
    return found is not None and found.ratio + errors * found.error < _PAYS
