"""What one rendering of a template may cost, and the meter that counts it.

Two budgets are counted, and give the same verdict on every machine: steps, and characters written. A third, CPU time
of the thread, ends what is slow in a way that the first two do not see. No single operation may run for long, because
the size of its operands and of its result is bounded before it is done: see :mod:`wedlm_core.templating.growth`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from wedlm_core.errors import ConfigError, RequestError

__all__ = [
    "ITEM_CHARS",
    "LIMITS",
    "Meter",
    "TemplateLimitError",
    "TemplateLimits",
    "TemplateSyntaxError",
    "current",
    "metered",
]

ITEM_CHARS = 32
"""An item of a list counts as so many characters: about what it takes in memory, and in time to look at."""

CHARS_PER_STEP = 4096
"""Characters that are read in the time of one step of a template."""


class TemplateLimitError(RequestError):
    """Rendering a template would take too long, or too much memory."""


class TemplateSyntaxError(ConfigError):
    """A template cannot be compiled."""


@dataclass(frozen=True, kw_only=True)
class TemplateLimits:
    """What one rendering may cost.

    Attributes:
        source_chars: length of the template. Published chat templates have up to 30 thousand characters; this leaves
            room for a prompt template with many examples, and compiles within seconds.
        steps: iterations of loops, calls, filters, tests and operations together. A million take about a second; a
            chat template takes about 50 for each message.
        value_chars: size of one text, and of one list with all that is in it. It is four times a prompt of a million
            tokens of two characters each.
        total_chars: of all texts and lists that are made on the way: bounds memory.
        int_bits: of an integer; Python writes integers of up to 4300 digits, which have as many.
        slow_chars: of a text for the filters whose time grows with the square of it.
        seconds: CPU time of the thread.
    """

    source_chars: int = 2**20
    steps: int = 1_000_000
    value_chars: int = 8 * 2**20
    total_chars: int = 64 * 2**20
    int_bits: int = 16_384
    slow_chars: int = 100_000
    seconds: float = 5.0


LIMITS = TemplateLimits()
"""The limits in use."""

_STEPS_BETWEEN_CLOCKS = 64
_CHARS_BETWEEN_CLOCKS = 2**18


class Meter:
    """Counts what one rendering costs.

    Every method raises :class:`TemplateLimitError` where a limit is passed.
    """

    __slots__ = ("_chars", "_deadline", "_next_chars", "_next_steps", "_steps", "limits")

    def __init__(self, limits: TemplateLimits) -> None:
        self.limits = limits
        self._steps = self._chars = 0
        self._next_steps, self._next_chars = _STEPS_BETWEEN_CLOCKS, _CHARS_BETWEEN_CLOCKS
        self._deadline = time.thread_time() + limits.seconds

    def step(self, count: int = 1) -> None:
        """An iteration, call or operation, or so many of them."""
        self._steps += count
        if self._steps >= self._next_steps:
            self._next_steps = self._steps + _STEPS_BETWEEN_CLOCKS
            if self._steps > self.limits.steps:
                raise TemplateLimitError(
                    f"the template takes more than {self.limits.steps} steps. Shorten its loops, or the row's lists"
                )
            self._check_clock()

    def look_at(self, value: object) -> None:
        """A text is read to its end, which for a long one takes as long as many steps."""
        if isinstance(value, (str, bytes)) and len(value) > CHARS_PER_STEP:
            self.step(len(value) // CHARS_PER_STEP)

    def write(self, chars: int) -> None:
        """So many characters are made."""
        self.fits(chars)
        self._chars += chars
        if self._chars >= self._next_chars:
            self._next_chars = self._chars + _CHARS_BETWEEN_CLOCKS
            if self._chars > self.limits.total_chars:
                raise TemplateLimitError(
                    f"the template makes more than {self.limits.total_chars} characters on its way. Shorten its loops, "
                    "or the texts in the row"
                )
            self._check_clock()

    def fits(self, chars: int) -> None:
        """A value has, or would have, so many characters."""
        if chars > self.limits.value_chars:
            raise TemplateLimitError(
                f"the template makes a value of {chars} characters, and {self.limits.value_chars} is the most. "
                "Shorten it, or the texts in the row"
            )

    def fits_slow(self, chars: int, what: str) -> None:
        """A text of so many characters goes through something whose time grows with its square."""
        if chars > self.limits.slow_chars:
            raise TemplateLimitError(
                f"{what} is given {chars} characters, and {self.limits.slow_chars} is the most. Shorten the text"
            )

    def _check_clock(self) -> None:
        if time.thread_time() > self._deadline:
            raise TemplateLimitError(
                f"the template takes more than {self.limits.seconds:g} seconds. Shorten its loops, or the row"
            )


_CURRENT: ContextVar[Meter | None] = ContextVar("template_meter", default=None)


def current() -> Meter:
    """The meter of the rendering that runs in this context; outside of any, one of its own."""
    meter = _CURRENT.get()
    return Meter(LIMITS) if meter is None else meter


@contextmanager
def metered(limits: TemplateLimits) -> Iterator[Meter]:
    """A block whose work on templates is counted together."""
    meter = Meter(limits)
    token = _CURRENT.set(meter)
    try:
        yield meter
    finally:
        _CURRENT.reset(token)
