"""Work that is begun ahead of its results, a bounded number at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["in_order"]

_Item = TypeVar("_Item")
_Begun = TypeVar("_Begun")
_Result = TypeVar("_Result")


def in_order(
    items: Iterable[_Item], begin: Callable[[_Item], _Begun], end: Callable[[_Begun], _Result], most: int
) -> Iterator[_Result]:
    """The results of items in their order; items are drawn, and begun, ``most`` of them at a time.

    Args:
        items: drawn as far as they can be begun.
        begin: starts work elsewhere and gives a handle of it.
        end: waits for the result of a handle.
        most: handles whose results are not taken yet.
    """
    begun: deque[_Begun] = deque()
    for item in items:
        begun.append(begin(item))
        if len(begun) >= most:
            yield end(begun.popleft())
    while begun:
        yield end(begun.popleft())
