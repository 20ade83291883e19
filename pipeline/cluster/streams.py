"""Draws from iterators in threads of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")
_MAX_WAITING = 4096
"""Items that wait at most. A slower consumer then blocks the sources, so memory stays bounded."""
_POLL_SECONDS = 1.0


class _End:
    """A source has ended; ``error``: by raising it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def drain(
    sources: Sequence[Callable[[], Iterator[_T]]],
    *,
    check: Callable[[], None] = lambda: None,
    begun: Callable[[threading.Thread], None] = lambda thread: None,
    failed: Callable[[], None] = lambda: None,
) -> Generator[list[_T], None, None]:
    """Lists of the items that became ready since the last list: one item for a fast consumer, many for a slow one.

    If a source raises, the others end with their next item, and the error is raised here after all items.

    Args:
        sources: each is begun in the thread that draws from it.
        check: called about every second while there is nothing, and may raise: a source may never come back.
        begun: is given each thread. It outlives a consumer that goes early: until the next item of its source comes.
        failed: called once a source has raised, to end those that wait for the consumer's use of their items.
    """
    inbox: queue.Queue[_T | _End] = queue.Queue(_MAX_WAITING)
    ending, abandoned = threading.Event(), threading.Event()

    def put(item: _T | _End) -> None:
        while not abandoned.is_set():
            try:
                inbox.put(item, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                continue

    def draw(begin: Callable[[], Iterator[_T]]) -> None:
        error: BaseException | None = None
        try:
            for item in begin():
                put(item)
                if ending.is_set() or abandoned.is_set():
                    break
        except BaseException as raised:
            error = raised
        put(_End(error))

    for source in sources:
        thread = threading.Thread(target=draw, args=(source,), name="drain", daemon=True)
        thread.start()
        begun(thread)
    left, errors = len(sources), list[BaseException]()
    try:
        while left:
            found = _waiting(inbox, check)
            if ready := [item for item in found if not isinstance(item, _End)]:
                yield ready
            ends = [item for item in found if isinstance(item, _End)]
            left -= len(ends)
            if raised := [end.error for end in ends if end.error is not None]:
                errors += raised
                ending.set()
                failed()
    finally:
        abandoned.set()
    if errors:
        raise errors[0]


def _waiting(inbox: queue.Queue[_T], check: Callable[[], None]) -> list[_T]:
    """The items that are there, one at least."""
    while True:
        try:
            found = [inbox.get(timeout=_POLL_SECONDS)]
            break
        except queue.Empty:
            check()
    while not inbox.empty() and len(found) < _MAX_WAITING:
        found.append(inbox.get())
    return found
