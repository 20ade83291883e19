"""Compare forwards of one kind with forwards of another by the seconds that their tokens took. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Arms", "Belief", "Comparison", "Forwards", "octave"]

_KEPT = 0.99  # share of the sums kept per forward: about 100 forwards count
_ALIKE = 1.5  # the variance of a mean of forwards that follow each other, over that of independent ones
_DRIFT = 0.03  # by which what is compared changes from one comparison to the next
_UNLIKELY = 2.0  # standard errors at which what a comparison finds is clipped: something else was done meanwhile
_NEAR = 0.75  # octaves from a number of sequences to what still counts as about as many
_ROUNDING = 1e-9  # share of a sum of squares below which what is left of it is rounding
_DISTURBED = 20.0  # times the usual at which the seconds of a forward are clipped: something else was done


def octave(sequences: int, last: int) -> int:
    """The binary logarithm of a number of sequences, rounded: of about as many; ``last`` if that is near as well.

    Where one sequence more or less would make another octave, forwards would be of one and the other in turns, and too
    few in a row of either to tell anything.

    Args:
        sequences: how many.
        last: the octave of forwards before.
    """
    exact = math.log2(max(1, sequences))
    return last if abs(exact - last) < _NEAR else round(exact)


@dataclass(slots=True)
class Forwards:
    """Sums over forwards of about as many sequences: of seconds, tokens and rows of prefill, and of their products."""

    count: float = 0.0
    seconds: float = 0.0
    tokens: float = 0.0
    prefill: float = 0.0
    seconds_2: float = 0.0
    tokens_2: float = 0.0
    prefill_2: float = 0.0
    seconds_tokens: float = 0.0
    seconds_prefill: float = 0.0
    tokens_prefill: float = 0.0

    def add(self, seconds: float, tokens: float, prefill: float) -> None:
        """Add a forward."""
        if self.seconds > 0:
            seconds = min(seconds, _DISTURBED * self.seconds / self.count)
        self.count = _KEPT * self.count + 1.0
        self.seconds = _KEPT * self.seconds + seconds
        self.tokens = _KEPT * self.tokens + tokens
        self.prefill = _KEPT * self.prefill + prefill
        self.seconds_2 = _KEPT * self.seconds_2 + seconds * seconds
        self.tokens_2 = _KEPT * self.tokens_2 + tokens * tokens
        self.prefill_2 = _KEPT * self.prefill_2 + prefill * prefill
        self.seconds_tokens = _KEPT * self.seconds_tokens + seconds * tokens
        self.seconds_prefill = _KEPT * self.seconds_prefill + seconds * prefill
        self.tokens_prefill = _KEPT * self.tokens_prefill + tokens * prefill

    def beside_prefill(self) -> tuple[float, float]:
        """How seconds go with rows of prefill, tokens apart: sums of products of what is left of either and of squares.

        Left is what tokens do not explain. The quotient of the sums over all forwards is seconds of a row of prefill.
        """
        each, rows = self.seconds / self.tokens, self.prefill / self.tokens
        products = (
            self.seconds_prefill - each * self.tokens_prefill - rows * self.seconds_tokens + each * rows * self.tokens_2
        )
        squares = self.prefill_2 - 2 * rows * self.tokens_prefill + rows * rows * self.tokens_2
        return products, squares

    def seconds_per_token(self, row: float, rows: float) -> tuple[float, float]:
        """Seconds per token if ``rows`` of prefill, of ``row`` seconds, came with each token; and their relative error.

        Prompts are read in bursts: that some forwards have more of them than others says nothing of drafts.
        """
        each = (self.seconds - row * (self.prefill - rows * self.tokens)) / self.tokens
        own = each - row * rows  # of a token, prefill apart
        squares = (
            self.seconds_2 - 2 * row * self.seconds_prefill + row * row * self.prefill_2
            - 2 * own * (self.seconds_tokens - row * self.tokens_prefill) + own * own * self.tokens_2
        )  # fmt: skip
        if each <= 0:
            return self.seconds / self.tokens, math.inf
        return each, math.sqrt(max(0.0, squares) * _ALIKE) / (each * self.tokens)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The logarithm of seconds per token with drafts over those without, and its standard error."""

    ratio: float
    error: float


@dataclass(slots=True)
class Arms:
    """Forwards of about as many sequences, without drafts of some source and with them."""

    without: Forwards = field(default_factory=Forwards)
    with_drafts: Forwards = field(default_factory=Forwards)

    def arm(self, with_drafts: bool) -> Forwards:
        """One of the two."""
        return self.with_drafts if with_drafts else self.without

    def forget(self, with_drafts: bool) -> None:
        """Begin one of the two anew."""
        if with_drafts:
            self.with_drafts = Forwards()
        else:
            self.without = Forwards()

    def compare(self, least: int = 1) -> Comparison | None:
        """What they say by now; None where of either kind fewer than ``least`` forwards, or no token, are known."""
        one, other = self.with_drafts, self.without
        if min(one.count, other.count) < least or min(one.tokens, other.tokens) <= 0:
            return None
        (products, squares), (more_products, more_squares) = one.beside_prefill(), other.beside_prefill()
        both = squares + more_squares
        varies = both > _ROUNDING * (one.prefill_2 + other.prefill_2)
        row = max(0.0, (products + more_products) / both) if varies else 0.0
        rows = (one.prefill + other.prefill) / (one.tokens + other.tokens)
        (here, here_error), (there, there_error) = (arm.seconds_per_token(row, rows) for arm in (one, other))
        if not 0 < min(here, there) <= max(here, there) < math.inf:  # a clock that stood still
            return None
        return Comparison(math.log(here / there), math.hypot(here_error, there_error))


@dataclass(slots=True)
class Belief:
    """What comparisons say together of one logarithm: each has an error, and it drifts (R. E. Kalman, 1960).

    Attributes:
        prior: its standard error before any comparison, about 0.
        value: of it.
        variance: of that.
        remembered: forwards after which a comparison counts e times less: jobs change, and it may be wrong.
    """

    prior: float
    value: float
    variance: float
    remembered: int

    @classmethod
    def unknown(cls, prior: float, *, remembered: int) -> Belief:
        """Before any comparison."""
        return cls(prior, 0.0, prior**2, remembered)

    @property
    def error(self) -> float:
        """Standard error of the value by the next comparison."""
        return math.sqrt(self.variance + _DRIFT**2)

    def fade(self, forwards: int) -> None:
        """Let so many forwards pass."""
        kept = math.exp(-forwards / self.remembered)
        self.value *= kept
        self.variance = self.prior**2 + kept**2 * (self.variance - self.prior**2)

    def after(self, found: float, error: float) -> Belief:
        """What it would be, were this found by a comparison with this standard error."""
        variance = self.variance + _DRIFT**2
        gain = variance / (variance + error * error)
        most = _UNLIKELY * math.sqrt(variance + error * error)
        value = self.value + gain * min(max(found - self.value, -most), most) if gain else self.value
        return Belief(self.prior, value, (1 - gain) * variance, self.remembered)

    def learn(self, found: float, error: float) -> None:
        """Take in a comparison."""
        after = self.after(found, error)
        self.value, self.variance = after.value, after.variance
