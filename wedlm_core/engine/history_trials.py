"""When drafts from history are asked for: by the seconds that tokens take with them and without. Torch-free.

What a draft brings can be estimated, but not what all of them do to the steps of an engine: sequences end at other
times, windows hold fewer masks, the host does more. So the engine decodes with them for some forwards, now and then,
and compares, for as long as it takes to tell the difference from chance. What a trial says counts beside what those
before it said. Trials that fail come ever more seldom.
"""

from __future__ import annotations

import math

from wedlm_core.engine.history.tuning import DEFAULT_TRIALS, TrialTuning
from wedlm_core.engine.windows.comparison import Arms, Belief, Comparison, Forwards, octave

__all__ = ["Trials"]


class Trials:
    """Says for each forward whether drafts are asked for behind it; begins with some that are, or with a pause.

    Args:
        tuning: constants.
        late: it begins with a pause, behind which the first trial comes.

    Attributes:
        asks: behind the forward that comes next.
    """

    def __init__(self, tuning: TrialTuning = DEFAULT_TRIALS, *, late: bool = False) -> None:
        self._tuning = tuning
        self._unknown = Belief.unknown(tuning.prior_error, remembered=tuning.remembered)  # nothing changes it
        self.asks = not late
        self._is_steady = not late  # the drafts have shown to pay, or nothing is known yet
        self._left, self._passed = tuning.late if late else tuning.at_first, 0  # forwards of this phase: left, and past
        self._pause, self._checked = tuning.pause, tuning.checked
        self._idle, self._has_gained = 0, False  # forwards in a row without any gain; one of this phase had some
        self._spent_seconds, self._spent_tokens = 0.0, 0  # in this phase
        self._brought = 0.0  # tokens of a sequence, over its forwards that count
        self._carried = 0.0, 0  # seconds of steps in which none decoded, and rows of prefill
        self._decided = int(late)  # comparisons that were, the first of them with the first forwards
        self._age = 0  # forwards so far
        self._at_first: int | None = None if late else 0  # sequences of the first forwards together; None behind them
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
        counts = self._passed > self._tuning.uncounted
        if counts:
            arms.arm(self.asks).add(seconds, tokens, prefill_rows)
            self._brought += tokens / sequences
        if self._at_first is not None:
            self._at_first += sequences
        ends = self._left <= 0 or self._is_hopeless or self._is_enough
        if ends or (counts and self._compares and self._is_clear(size, arms.compare(self._tuning.counted))):
            self._decide(max(self._sizes, key=self._sizes.__getitem__))

    def _is_clear(self, size: int, found: Comparison | None) -> bool:
        """Whether it is more than chance that drafts pay, or do not."""
        tuning = self._tuning
        if found is None or found.error > tuning.vague:
            return False
        known = self._with(self._known.get(size, self._unknown), found)
        least = tuning.first_given_up if self._decided <= 1 else tuning.given_up
        brings_little = self._brought < tuning.brings_little * (self._passed - tuning.uncounted)
        early = self.asks and self._passed < least and not (brings_little and self._loses_much(known))
        return self._pays(known, tuning.sure) or (self._fails(known) and not early)

    def _with(self, known: Belief, found: Comparison | None) -> Belief:
        """What is known once this is."""
        if found is None or not math.isfinite(found.error):
            return known
        return known.after(found.ratio, math.hypot(found.error, self._tuning.machine_error))

    def _pays(self, known: Belief, errors: float = 0.0) -> bool:
        """Whether drafts pay, by so many standard errors at least."""
        return known.value + errors * known.error < math.log(self._tuning.pays)

    def _fails(self, known: Belief) -> bool:
        """Whether it is clear that they do not."""
        return known.value - self._tuning.futile * known.error > math.log(self._tuning.pays)

    def _loses_much(self, known: Belief) -> bool:
        """Whether it is clear that they take far longer: what is yet to be learned will not make up for it."""
        return known.value - self._tuning.clear * known.error > math.log(self._tuning.loses_much)

    def rest(self) -> int:
        """How many forwards tell nothing from here on, as they are far from the next trial; they are counted then."""
        if self.asks or self._is_steady or self._left <= self._tuning.baseline:
            return 0
        far, self._left = self._left - self._tuning.baseline, self._tuning.baseline
        self._age += far
        return far

    @property
    def _compares(self) -> bool:
        """Whether this phase is a trial, or checks whether drafts still pay: it may end before its time."""
        return self.asks != self._is_steady and self._passed > self._tuning.uncounted + self._tuning.counted

    @property
    def _is_enough(self) -> bool:
        """Whether the first forwards had so many sequences that fewer of them tell as much."""
        tuning = self._tuning
        enough = self._at_first is not None and self._at_first >= tuning.enough_sequences
        return enough and self._passed >= tuning.enough_forwards

    @property
    def _is_hopeless(self) -> bool:
        tuning = self._tuning
        return self.asks and self._idle >= (tuning.idle if self._is_steady or self._has_gained else tuning.hopeless)

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
        tuning, hopeless = self._tuning, self._is_hopeless
        checks = not self.asks and self._is_steady  # whether they still pay
        if self.asks and self._is_steady and not hopeless:  # to compare anew
            self._begin(asks=False, forwards=tuning.check)
            return
        if not self.asks and not self._is_steady:
            self._begin(asks=True, forwards=tuning.trial)
            return
        known = self._learned(size)
        self._decided += 1
        if not hopeless and self._pays(known) and self._decided == 1:
            # The first forwards had masks beside these drafts. From here on none have: that is to be tried.
            self._is_steady = False
            self._begin(asks=True, forwards=tuning.trial)
            self._has_gained = True  # in the first forwards: some without any gain do not end it
            return
        if not hopeless and self._pays(known):
            more = checks and self._pays(known, tuning.likely)
            self._checked = min(2 * self._checked, tuning.most_checked) if more else tuning.checked
            self._is_steady, self._pause = True, tuning.pause
            self._begin(asks=True, forwards=self._checked)
            return
        clear = hopeless or self._fails(known)
        pause = max(self._pause, self._affordable(self._arms[size].without) if clear and not self._is_steady else 0)
        self._is_steady = False
        self._begin(asks=False, forwards=pause)
        self._pause = min(2 * self._pause, tuning.longest_pause)

    def _learned(self, size: int) -> Belief:
        """What is known once the phase that ends is. What is clear by it alone is not outvoted: jobs change."""
        found = self._arms[size].compare()
        known, alone = self._with(self._known.get(size, self._unknown), found), self._with(self._unknown, found)
        if self._pays(known) != self._pays(alone) and (self._pays(alone, self._tuning.clear) or self._fails(alone)):
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
        paid = int(lost / self._tuning.trial_share / (without.seconds / without.count))
        return min(self._tuning.most_afforded, 2 * self._age, paid)

    def _begin(self, *, asks: bool, forwards: int) -> None:
        self._at_first = None
        self.asks, self._left, self._passed, self._idle, self._has_gained = asks, forwards, 0, 0, False
        self._spent_seconds, self._spent_tokens, self._brought = 0.0, 0, 0.0
        self._sizes.clear()
        # Of what was found at the beginning of a job less is kept: there is more text by now that could repeat.
        faded = round(forwards * max(1.0, self._tuning.remembered / (2 * self._age + 1)))
        for known in self._known.values():
            known.fade(faded)
        # What was long before has no part in it: the machine may have been faster or slower then.
        if not asks or not self._is_steady:
            for arms in self._arms.values():
                arms.forget(with_drafts=asks)
