"""Runs groups of stages side by side: each on actors of its own, all committed by one thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["merged"]

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class _Ended:
    error: BaseException | None


def merged(streams: Sequence[Callable[[], Iterator[_T]]], end: Callable[[], None]) -> Iterator[_T]:
    """The items of several streams, as they come; a single one in this thread, others in one thread each.

    If one fails, the others end with their next item, what they gave is yielded, and then the error is raised.

    Args:
        streams: each is begun in the thread that draws from it.
        end: lets streams end that wait for what the others would have caused.
    """
    if len(streams) == 1:
        yield from streams[0]()
        return
    inbox: queue.SimpleQueue[tuple[_T] | _Ended] = queue.SimpleQueue()
    left = threading.Event()

    def draw(begin: Callable[[], Iterator[_T]]) -> None:
        error: BaseException | None = None
        try:
            for item in begin():
                inbox.put((item,))
                if left.is_set():
                    break
        except BaseException as raised:
            error = raised
        inbox.put(_Ended(error=error))

    threads = [threading.Thread(target=draw, args=(own,), name="group", daemon=True) for own in streams]
    for thread in threads:
        thread.start()
    errors: list[BaseException] = []
    try:
        for _ in threads:
            while not isinstance(found := inbox.get(), _Ended):
                yield found[0]
            if found.error is not None:
                errors.append(found.error)
                left.set()
                end()
    finally:
        left.set()
        end()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
