"""Drains an iterator in a thread: gives the consumer a list of everything that is ready each time it asks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")
_MAX_WAITING = 4096
"""Items that wait at most. A slower consumer then blocks the source, so memory stays bounded."""
_POLL_SECONDS = 1.0


def drain(
    items: Iterator[_T],
    check: Callable[[], None] = lambda: None,
    begun: Callable[[threading.Thread], None] = lambda thread: None,
) -> Iterator[list[_T]]:
    """Lists of the items that became ready since the last list: one item for a fast consumer, many for a slow one.

    A thread of its own draws from ``items``. An exception of ``items`` is raised here, after the items before it.
    ``check`` is called about every second while there is nothing, and may raise: ``items`` may never come back.
    ``begun`` is given the thread, which outlives a consumer that goes early: until the next item comes.
    """
    inbox: queue.Queue[_T | _End] = queue.Queue(_MAX_WAITING)
    stopped = threading.Event()

    def put(item: _T | _End) -> None:
        while not stopped.is_set():
            try:
                inbox.put(item, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                continue

    def draw() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    break
        except BaseException as raised:
            error = raised
        put(_End(error))

    thread = threading.Thread(target=draw, name="drain", daemon=True)
    thread.start()
    begun(thread)
    try:
        while True:
            ready: list[_T] = []
            while not ready or (not inbox.empty() and len(ready) < _MAX_WAITING):
                try:
                    item = inbox.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    check()
                    continue
                if isinstance(item, _End):
                    if ready:
                        yield ready
                    if item.error is not None:
                        raise item.error
                    return
                ready.append(item)
            yield ready
    finally:
        stopped.set()


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error
