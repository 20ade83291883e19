"""Measure the size of a value; a part that occurs several times counts several times.

Lists that hold the same list twice, many levels deep, are small in memory but exponentially large when they are
printed, compared or hashed, and each of these is one operation. Therefore every list, tuple and mapping is measured
when a template creates it, and its size is limited like that of a text.
"""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any

from wedlm_core.templating.limits import ITEM_CHARS, Meter

__all__ = ["Extent", "check", "extent", "is_container", "text_length"]

_SEQUENCES = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Size of a value.

    Attributes:
        chars: characters of all texts, plus :data:`~wedlm_core.templating.limits.ITEM_CHARS` for each item.
        items: number of items at all depths.
        depth: levels of nested containers.
    """

    chars: int
    items: int
    depth: int


def is_container(value: Any) -> bool:
    """Whether printing, comparing or hashing the value does the same to other values inside it."""
    return isinstance(value, (*_SEQUENCES, Mapping))


def extent(value: Any, meter: Meter) -> Extent:
    """The size of a value.

    Raises:
        TemplateLimitError: it is too large; measuring stops at the limit.
    """
    chars = items = depth = 0
    levels = [iter((value,))]
    while levels:
        for item in levels[-1]:
            items += 1
            chars += ITEM_CHARS
            if isinstance(item, (str, bytes)):
                chars += len(item)
            elif isinstance(item, int):
                chars += item.bit_length() // 3
            elif is_container(item):
                pairs = isinstance(item, Mapping)
                levels.append(iter(x for pair in item.items() for x in pair) if pairs else iter(item))
                depth = max(depth, len(levels) - 1)
                break
            if chars > meter.limits.value_chars:
                meter.fits(chars)
        else:
            levels.pop()
        meter.fits(chars)
    return Extent(chars=chars, items=items, depth=depth)


def text_length(value: Any, meter: Meter) -> int:
    """The approximate length of a value's text; exact for texts."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return extent(value, meter).chars


def check(value: Any, meter: Meter) -> Any:
    """Measure a value and return it.

    Raises:
        TemplateLimitError: this value, or all values of the rendering together, are too large.
    """
    if isinstance(value, (str, bytes)):
        meter.write(len(value))
    elif isinstance(value, int):
        if value.bit_length() > meter.limits.int_bits:
            meter.fits(max(value.bit_length(), meter.limits.value_chars + 1))
    elif is_container(value):
        size = extent(value, meter)
        meter.write(size.items * ITEM_CHARS)
    return value
