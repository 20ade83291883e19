"""Regular expressions over bytes; :mod:`wedlm_core.grammar.subsets` compiles them.

An expression is a tree, or a graph without cycles: what is there twice is best the same object, for each object is
compiled once for each continuation. A part with ``parts=()`` of :class:`Either` allows nothing, one of
:class:`Sequence` the empty text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "DIGIT", "EMPTY", "NOTHING", "Both", "ByteSet", "Either", "Expression", "Outside", "Repeat", "Sequence", "Text",
    "byte_range", "characters", "optional", "sequence",
]  # fmt: skip

_LAST = 0x10FFFF
_ENDS = (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, _LAST)  # of one, two, three bytes, of what comes before surrogates, ...
_SURROGATES = (0xD800, 0xDFFF)


class Outside(Exception):  # noqa: N818 (no error: what is outside is done in another way)
    """What was given is not of the subset that has an expression."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """These bytes."""

    text: bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class ByteSet:
    """One byte of a set; bit b of ``mask`` is set where byte b is in it."""

    mask: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequence:
    """One part behind the other."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Either:
    """Any of the parts."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeat:
    """A part ``least`` to ``most`` times; any number of times from ``least`` where ``most`` is None."""

    part: Expression
    least: int
    most: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Both:
    """The texts of two expressions at once."""

    parts: tuple[Expression, Expression]


Expression = Text | ByteSet | Sequence | Either | Repeat | Both

EMPTY = Sequence(parts=())
NOTHING = Either(parts=())


def sequence(*parts: Expression) -> Sequence:
    """One part behind the other."""
    return Sequence(parts=parts)


def optional(part: Expression) -> Either:
    """A part or nothing."""
    return Either(parts=(part, EMPTY))


def byte_range(first: int, last: int) -> int:
    """The mask of the bytes from ``first`` to ``last``."""
    return (1 << (last + 1)) - (1 << first)


DIGIT = ByteSet(mask=byte_range(0x30, 0x39))


@lru_cache(maxsize=1024)
def characters(ranges: tuple[tuple[int, int], ...]) -> Expression:
    """One character, as UTF-8, of ranges of code points, both ends included. Surrogates are no characters."""
    single, longer = 0, []
    for first, last in ranges:
        for begin, end in _encoded(first, last):
            if len(begin) == 1:
                single |= byte_range(begin[0], end[0])
            else:
                longer.append(Sequence(parts=tuple(ByteSet(mask=byte_range(*b)) for b in zip(begin, end, strict=True))))
    return Either(parts=(ByteSet(mask=single), *longer))


def _encoded(first: int, last: int) -> Iterator[tuple[bytes, bytes]]:
    """Pairs of encodings of one length, so that a text is in the range iff each of its bytes is between theirs."""
    begin = first
    for end in _ENDS:
        stop = min(last, end)
        if begin <= stop and not _SURROGATES[0] <= begin <= _SURROGATES[1]:
            yield from _aligned(begin, stop, len(chr(begin).encode()))
        begin = max(begin, end + 1)


def _aligned(first: int, last: int, length: int) -> Iterator[tuple[bytes, bytes]]:
    for i in range(1, length):
        low = (1 << 6 * i) - 1
        if first & ~low != last & ~low:
            if first & low:
                yield from _aligned(first, first | low, length)
                yield from _aligned((first | low) + 1, last, length)
                return
            if last & low != low:
                yield from _aligned(first, (last & ~low) - 1, length)
                yield from _aligned(last & ~low, last, length)
                return
    yield chr(first).encode(), chr(last).encode()
