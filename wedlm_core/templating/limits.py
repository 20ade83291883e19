"""The limits of one template rendering, and the meter that counts against them.

Two budgets do not depend on the machine: steps, and characters written. The third is CPU time of the thread; it ends
renderings whose slowness the other two do not measure. No single operation runs for long, because the size of its
operands and its result is bounded beforehand: see :mod:`wedlm_core.templating.growth`.
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
"""Characters that one list item counts as: about its memory, and the time to read it."""

CHARS_PER_STEP = 4096
"""Number of characters that are read in the time of one template step."""


class TemplateLimitError(RequestError):
    """Rendering a template takes too long or too much memory."""


class TemplateSyntaxError(ConfigError):
    """A template cannot be compiled."""


@dataclass(frozen=True, kw_only=True)
class TemplateLimits:
    """Limits of one rendering.

    Attributes:
        source_chars: length of the template. Published chat templates have up to 30,000 characters; the default leaves
            room for a prompt template with many examples, and compiles within seconds.
        steps: total of loop iterations, calls, filters, tests and operations. A million take about a second; a chat
            template takes about 50 per message.
        value_chars: size of one text, or of one list with its contents. The default is four times a prompt of a
            million tokens with two characters each.
        total_chars: total size of all texts and lists that are created. It bounds memory.
        int_bits: size of an integer. The default is that of 4300 digits, the most that Python prints.
        slow_chars: length of a text for filters whose time grows with its square.
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
"""The default limits."""

_STEPS_BETWEEN_CLOCKS = 64
_CHARS_BETWEEN_CLOCKS = 2**18


class Meter:
    """Counts the cost of one rendering.

    Every method raises :class:`TemplateLimitError` if a limit is exceeded.
    """

    __slots__ = ("_chars", "_deadline", "_next_chars", "_next_steps", "_steps", "limits")

    def __init__(self, limits: TemplateLimits) -> None:
        self.limits = limits
        self._steps = self._chars = 0
        self._next_steps, self._next_chars = _STEPS_BETWEEN_CLOCKS, _CHARS_BETWEEN_CLOCKS
        self._deadline = time.thread_time() + limits.seconds

    def step(self, count: int = 1) -> None:
        """Count ``count`` iterations, calls or operations."""
        self._steps += count
        if self._steps >= self._next_steps:
            self._next_steps = self._steps + _STEPS_BETWEEN_CLOCKS
            if self._steps > self.limits.steps:
                raise TemplateLimitError(
                    f"the template takes more than {self.limits.steps} steps. Shorten its loops, or the row's lists"
                )
            self._check_clock()

    def look_at(self, value: object) -> None:
        """Count the steps of reading a text to its end."""
        if isinstance(value, (str, bytes)) and len(value) > CHARS_PER_STEP:
            self.step(len(value) // CHARS_PER_STEP)

    def write(self, chars: int) -> None:
        """Count ``chars`` characters that are created."""
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
        """Check the size of a value before or after it is created."""
        if chars > self.limits.value_chars:
            raise TemplateLimitError(
                f"the template makes a value of {chars} characters, and {self.limits.value_chars} is the most. "
                "Shorten it, or the texts in the row"
            )

    def fits_slow(self, chars: int, what: str) -> None:
        """Check the length of a text for an operation whose time grows with its square."""
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
    """The meter of the current rendering; outside of a rendering, a new one."""
    meter = _CURRENT.get()
    return Meter(LIMITS) if meter is None else meter


@contextmanager
def metered(limits: TemplateLimits) -> Iterator[Meter]:
    """A context in which all template work is counted by one meter."""
    meter = Meter(limits)
    token = _CURRENT.set(meter)
    try:
        yield meter
    finally:
        _CURRENT.reset(token)
