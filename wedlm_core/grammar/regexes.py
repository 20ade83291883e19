"""Regexes that Python and the backend read alike, as expressions over bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from wedlm_core.grammar.patterns import pattern_fault
from wedlm_core.grammar.regular import EMPTY, Either, Expression, Outside, Repeat, sequence

__all__ = ["LAST", "Ranges", "regex_language", "searched", "within"]

Ranges = tuple[tuple[int, int], ...]
"""Code points, first and last of each range, in order, with none between two that touch."""

LAST = 0x10FFFF
_ANY: Ranges = ((0, LAST),)
_SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip


def regex_language(regex: str, spell: Callable[[Ranges], Expression]) -> Expression:
    """The texts that a regex matches as a whole.

    Args:
        regex: its anchors stand at its ends, if it has any.
        spell: how one of a set of characters is written.

    Raises:
        Outside: the regex has more than literals, sets, groups, alternatives and repeats.
    """
    items, _, _ = _parsed(regex)
    return _Reader(spell).sequence(items)


def searched(regex: str, spell: Callable[[Ranges], Expression]) -> Expression:
    """The texts in which a regex matches somewhere: anywhere where it is not anchored. Raises as above."""
    items, begins, ends = _parsed(regex)
    if not (begins and ends) and len(items) == 1 and items[0][0] is op.BRANCH:
        raise Outside
    any_text = Repeat(part=spell(_ANY), least=0, most=None)
    inside = _Reader(spell).sequence(items)
    return sequence(EMPTY if begins else any_text, inside, EMPTY if ends else any_text)


def within(ranges: Ranges, allowed: Ranges) -> Ranges:
    """What is in both."""
    return _outside_of((*_outside_of(ranges), *_outside_of(allowed)))


def _outside_of(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other characters."""
    found, begin = list[tuple[int, int]](), 0
    for first, last in sorted(ranges):
        if first > begin:
            found.append((begin, first - 1))
        begin = max(begin, last + 1)
    return (*found, (begin, LAST)) if begin <= LAST else tuple(found)


def _parsed(regex: str) -> tuple[Sequence[Any], bool, bool]:
    """The parts of a regex, and whether it is anchored at its beginning and at its end."""
    if pattern_fault(regex) is not None:
        raise Outside
    items = list(parser.parse(regex))
    begins = bool(items) and items[0] == (op.AT, op.AT_BEGINNING)
    ends = len(items) > begins and items[-1] == (op.AT, op.AT_END)
    return items[begins : len(items) - ends], begins, ends


class _Reader:
    def __init__(self, spell: Callable[[Ranges], Expression]) -> None:
        self._spell = spell

    def sequence(self, items: Iterable[Any]) -> Expression:
        return sequence(*(self._part(kind, value) for kind, value in items))

    def _part(self, kind: Any, value: Any) -> Expression:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return self._spell(_characters(kind, value))
        if kind is op.BRANCH:
            return Either(parts=tuple(self.sequence(items) for items in value[1]))
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            return self.sequence(value[3])
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, items = value
            return Repeat(part=self.sequence(items), least=least, most=None if most is op.MAXREPEAT else most)
        raise Outside


def _characters(kind: Any, value: Any) -> Ranges:
    if kind is op.ANY:
        return _outside_of([(0x0A, 0x0A)])
    if kind is op.LITERAL:
        return ((value, value),)
    if kind is op.NOT_LITERAL:
        return _outside_of([(value, value)])
    ranges, is_negated = list[tuple[int, int]](), False
    for member, argument in value:
        if member is op.NEGATE:
            is_negated = True
        elif member is op.LITERAL:
            ranges.append((argument, argument))
        elif member is op.RANGE:
            ranges.append(argument)
        elif member is op.CATEGORY and argument in (op.CATEGORY_SPACE, op.CATEGORY_NOT_SPACE):
            ranges.extend(_SPACE if argument is op.CATEGORY_SPACE else _outside_of(_SPACE))
        else:
            raise Outside
    others = _outside_of(ranges)
    return others if is_negated else _outside_of(others)
