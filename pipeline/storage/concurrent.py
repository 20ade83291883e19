"""Calls that wait for a store or a disk, several at once, with their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_ahead"]

_THREADS = 16

_T = TypeVar("_T")
_R = TypeVar("_R")


def map_ahead(function: Callable[[_T], _R], items: Iterable[_T], threads: int = _THREADS) -> Iterator[_R]:
    """``map``, with up to ``threads`` calls ahead of the result that is taken; memory holds so many results."""
    running: deque[Future[_R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                if len(running) >= threads:
                    yield running.popleft().result()
                running.append(pool.submit(function, item))
            while running:
                yield running.popleft().result()
        finally:
            for call in running:
                call.cancel()
