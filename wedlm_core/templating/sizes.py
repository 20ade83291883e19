"""How large a value is, counting shared parts as often as they would be written or compared.

Lists that hold the same list twice, many levels deep, are small in memory and without end once they are shown,
compared or hashed, which happens in one operation. Every list, tuple and mapping is measured when a template makes
it, so that none of them is larger than a text may be.
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
        chars: of all its texts, and :data:`~wedlm_core.templating.limits.ITEM_CHARS` for each item.
        items: at all depths together.
        depth: levels of containers.
    """

    chars: int
    items: int
    depth: int


def is_container(value: Any) -> bool:
    """Whether a value holds others, and shows, compares or hashes them with itself."""
    return isinstance(value, (*_SEQUENCES, Mapping))


def extent(value: Any, meter: Meter) -> Extent:
    """The size of a value.

    Raises:
        TemplateLimitError: it is larger than a value may be; what is beyond is not looked at.
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
    """About how long the text of a value is; exact for texts."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return extent(value, meter).chars


def check(value: Any, meter: Meter) -> Any:
    """The value itself, after it was counted.

    Raises:
        TemplateLimitError: it is larger than a value may be, or all values together are.
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
