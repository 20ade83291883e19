"""Integers and numbers between bounds, as expressions over bytes: the numerals that the backend, llguidance, takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from wedlm_core.grammar.bounds import is_exact
from wedlm_core.grammar.regular import (
    DIGIT,
    NOTHING,
    ByteSet,
    Either,
    Expression,
    Repeat,
    Text,
    byte_range,
    optional,
    sequence,
)

__all__ = ["float_text", "integers", "numbers"]

_LARGEST = 2**53
_MOST_DECIMALS = 18  # more are read in another way
_MINUS = Text(text=b"-")
_ZERO = Text(text=b"0")
_FROM_ONE = ByteSet(mask=byte_range(0x31, 0x39))
_DIGITS = Repeat(part=DIGIT, least=0, most=None)
_SOME_DIGITS = Repeat(part=DIGIT, least=1, most=None)
_NATURAL = Either(parts=(_ZERO, sequence(_FROM_ONE, _DIGITS)))
_POINT = Text(text=b".")
_ANY_FRACTION = optional(sequence(_POINT, _SOME_DIGITS))
_SOME_ZEROS = Repeat(part=_ZERO, least=1, most=None)
_ANY_INTEGER = sequence(optional(_MINUS), _NATURAL)
_EXPONENT = sequence(ByteSet(mask=1 << 0x45 | 1 << 0x65), optional(ByteSet(mask=1 << 0x2B | 1 << 0x2D)), _SOME_DIGITS)
_ANY_NUMBER = sequence(
    _ANY_INTEGER,
    _ANY_FRACTION,
    optional(
        sequence(ByteSet(mask=1 << 0x45 | 1 << 0x65), optional(ByteSet(mask=1 << 0x2B | 1 << 0x2D)), _SOME_DIGITS)
    ),
)


def float_text(value: float) -> str | None:
    """A number as the backend spells it, without an exponent; None where that is not known."""
    if abs(value) > _LARGEST or (value == 0 and math.copysign(1, value) < 0) or not is_exact(value):
        return None
    return str(int(value)) if value == int(value) else format(Decimal(repr(float(value))), "f")


def integers(
    minimum: float | None, maximum: float | None, above: float | None, below: float | None
) -> Expression | None:
    """Integers within bounds, ``above`` and ``below`` excluded; None where the backend's language is not known."""
    if any(bound is not None and abs(bound) > _LARGEST for bound in (minimum, maximum, above, below)):
        return None
    lowest = [math.ceil(minimum)] if minimum is not None else []
    lowest += [math.floor(above) + 1] if above is not None else []
    highest = [math.floor(maximum)] if maximum is not None else []
    highest += [math.ceil(below) - 1] if below is not None else []
    return _between(max(lowest, default=None), min(highest, default=None))


def _between(low: int | None, high: int | None) -> Expression:
    """Integers from ``low`` to ``high``. The backend has a -0 where 0 is inside, and both or no bounds are given."""
    if low is None and high is None:
        return _ANY_INTEGER
    if low is not None and high is not None and low > high:
        return NOTHING
    parts: list[Expression] = []
    if high is None or high >= 0:
        parts.append(_naturals(max(low or 0, 0), high))
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        has_zero = low is not None and high is not None and high >= 0
        parts.append(sequence(_MINUS, _naturals(0 if has_zero else least, None if low is None else -low)))
    return Either(parts=tuple(parts))


def _naturals(low: int, high: int | None) -> Expression:
    """Natural numbers from ``low`` to ``high``, without zeros in front."""
    length = len(str(low))
    if high is None:
        longer = sequence(_FROM_ONE, Repeat(part=DIGIT, least=length, most=None))
        return Either(parts=(_same_length(str(low), "9" * length), longer))
    parts, begin = [], str(low)
    for size in range(length, len(str(high)) + 1):
        parts.append(_same_length(begin, str(high) if size == len(str(high)) else "9" * size))
        begin = "1" + "0" * size
    return Either(parts=tuple(parts))


@lru_cache(maxsize=4096)
def _same_length(low: str, high: str) -> Expression:
    """Digits from ``low`` to ``high``, which have as many."""
    if not low:
        return sequence()
    size = len(low) - 1
    if low[1:] == "0" * size and high[1:] == "9" * size:
        return sequence(_one(low[0], high[0]), Repeat(part=DIGIT, least=size, most=size))
    if low[0] == high[0]:
        return sequence(_one(low[0], low[0]), _same_length(low[1:], high[1:]))
    parts = [sequence(_one(low[0], low[0]), _same_length(low[1:], "9" * size))]
    if ord(high[0]) - ord(low[0]) > 1:
        middle = _one(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1))
        parts.append(sequence(middle, Repeat(part=DIGIT, least=size, most=size)))
    parts.append(sequence(_one(high[0], high[0]), _same_length("0" * size, high[1:])))
    return Either(parts=tuple(parts))


def _one(first: str, last: str) -> ByteSet:
    return ByteSet(mask=byte_range(ord(first), ord(last)))


def numbers(
    minimum: float | None, maximum: float | None, above: float | None, below: float | None
) -> Expression | None:
    """Numbers within bounds; None where the backend's language is not known.

    Those between bounds have no exponent. Which zeros may end them depends on the bounds.
    """
    if any(bound is not None and float_text(bound) is None for bound in (minimum, maximum, above, below)):
        return None
    low, with_low = (minimum, True) if above is None or (minimum is not None and minimum > above) else (above, False)
    high, with_high = (maximum, True) if below is None or (maximum is not None and maximum < below) else (below, False)
    try:
        return _Range(low, high, with_low, with_high).numerals()
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """The backend compiles no such range, or its spelling of a bound is not known."""


def _spelled(value: float) -> str:
    """The text of a bound, also of one that was put in where there was none, such as 10**16."""
    text = float_text(value)
    if text is None:
        raise _UnknownError
    return text


@dataclass(frozen=True)
class _Range:
    """Numbers from ``low`` to ``high``, each of them included or not; None is no bound."""

    low: float | None
    high: float | None
    with_low: bool
    with_high: bool

    def numerals(self) -> Expression:
        low, high = self.low, self.high
        if low is None and high is None:
            return _ANY_NUMBER
        if low is not None and high is not None:
            if low > high or (low == high and not (self.with_low and self.with_high)):
                return NOTHING
            if low == high:
                return Text(text=_spelled(low).encode())
        if low is None or low < 0:
            return self._from_below_zero()
        if high is None:
            digits = len(str(int(low)))
            longer = sequence(_FROM_ONE, Repeat(part=DIGIT, least=digits, most=None), _ANY_FRACTION)
            return Either(parts=(_Range(low, 10.0**digits, self.with_low, False).numerals(), longer))
        return self._above_zero(_spelled(low), _spelled(high))

    def _from_below_zero(self) -> Expression:
        low, high = self.low, self.high
        if high is not None and high < 0:
            mirrored = _Range(-high, None if low is None else -low, self.with_high, self.with_low)
            return sequence(_MINUS, mirrored.numerals())
        negative = sequence(_MINUS, _Range(0.0, None if low is None else -low, False, self.with_low).numerals())
        if high == 0 and not self.with_high:
            return negative
        return Either(parts=(negative, _Range(0.0, high, True, self.with_high).numerals()))

    def _above_zero(self, low: str, high: str) -> Expression:
        """Between two numerals that are not equal, the lower first."""
        (low_whole, _, low_digits), (high_whole, _, high_digits) = low.partition("."), high.partition(".")
        if max(len(low_digits), len(high_digits)) > _MOST_DECIMALS:
            raise _UnknownError
        if low_whole == high_whole:
            size = max(len(low_digits), len(high_digits))
            low_digits, high_digits = low_digits.ljust(size, "0"), high_digits.ljust(size, "0")
            fraction = sequence(_POINT, self._fractions(low_digits, high_digits))
            return sequence(Text(text=low_whole.encode()), fraction if int(low_digits) else optional(fraction))
        parts: list[Expression] = []
        first, last = int(low_whole), int(high_whole)
        if low_digits or not self.with_low:
            parts.append(sequence(Text(text=low_whole.encode()), _POINT, _at_least(low_digits, self.with_low)))
            first += 1
        if first < last:
            parts.append(sequence(_naturals(first, last - 1), _ANY_FRACTION))
        if high_digits:
            fraction = sequence(_POINT, _at_most(high_digits, self.with_high))
            parts.append(sequence(Text(text=high_whole.encode()), optional(fraction)))
        elif self.with_high:
            parts.append(sequence(Text(text=high_whole.encode()), optional(sequence(_POINT, _SOME_ZEROS))))
        return Either(parts=tuple(parts))

    def _fractions(self, low: str, high: str) -> Expression:
        """Digits behind a point between two texts of one length, the lower first."""
        if low == high:
            if not (self.with_low and self.with_high):
                raise _UnknownError
            return Text(text=low.encode())
        if low[0] == high[0]:
            return sequence(_one(low[0], low[0]), self._fractions(low[1:], high[1:]))
        parts: list[Expression] = [sequence(_one(low[0], low[0]), _at_least(low[1:].rstrip("0"), self.with_low))]
        if ord(high[0]) - ord(low[0]) > 1:
            parts.append(sequence(_one(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1)), _DIGITS))
        rest = high[1:].rstrip("0")
        if rest or self.with_high:
            parts.append(sequence(_one(high[0], high[0]), _at_most(rest, self.with_high)))
        return Either(parts=tuple(parts))


def _at_least(digits: str, included: bool) -> Expression:
    """Digits behind a point that are not below some."""
    if not digits:
        return _DIGITS if included else sequence(_DIGITS, _FROM_ONE)
    if included and len(digits) == 1:
        return sequence(_one(digits, "9"), _DIGITS)
    same = sequence(_one(digits[0], digits[0]), _at_least(digits[1:], included))
    return same if digits[0] == "9" else Either(parts=(same, sequence(_one(chr(ord(digits[0]) + 1), "9"), _DIGITS)))


def _at_most(digits: str, included: bool) -> Expression:
    """Digits behind a point that are not above some. All of these digits come, or one of them is lower."""
    if not digits:
        if not included:
            raise _UnknownError
        return sequence()
    lower = sequence(_one("0", chr(ord(digits[0]) - 1)), _DIGITS) if digits[0] != "0" else NOTHING
    if not included and len(digits) == 1:
        if digits[0] == "0":
            raise _UnknownError
        return lower
    return Either(parts=(sequence(_one(digits[0], digits[0]), _at_most(digits[1:], included)), lower))
