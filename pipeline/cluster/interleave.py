"""Interleaves two streams of prepared units, so that neither waits for the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

__all__ = ["interleaved"]

_T = TypeVar("_T")
_POLL_SECONDS = 0.2


def interleaved(
    first: Iterator[_T], second: Iterator[_T], wake: Callable[[], None]
) -> Generator[_T | None, None, None]:  # fmt: skip
    """The items of both, those of ``first`` before those of ``second`` that are there as well; ends when both have.

    Each is drawn from in a thread of its own, one item ahead. While there is nothing, None is yielded now and then, so
    that a consumer can leave. An error of either is raised here.

    Args:
        first: may wait for what the consumer does with earlier items.
        second: any other stream.
        wake: called at the end; what ``first`` waits for will not come.
    """
    changed = threading.Condition()
    streams = [_Stream(items, changed) for items in (first, second)]
    try:
        while True:
            with changed:
                changed.wait_for(lambda: any(own.item or own.error for own in streams) or _all_ended(streams),
                                 _POLL_SECONDS)  # fmt: skip
                for own in streams:
                    if own.error is not None:
                        raise own.error
                if _all_ended(streams):
                    return
                taken = next((own.item.popleft() for own in streams if own.item), None)
                changed.notify_all()
            yield taken
    finally:
        with changed:
            for own in streams:
                own.stopped = True
            changed.notify_all()
        wake()


class _Stream(Generic[_T]):
    """A thread that draws items: ``item`` holds one or none. The attributes are guarded by ``changed``."""

    def __init__(self, items: Iterator[_T], changed: threading.Condition) -> None:
        self._items, self._changed = items, changed
        self.item: deque[_T] = deque()
        self.error: BaseException | None = None
        self.ended = self.stopped = False
        threading.Thread(target=self._draw, name="interleave", daemon=True).start()

    def _draw(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: not self.item or self.stopped)
                    if self.stopped:
                        return
                    self.item.append(item)
                    self._changed.notify_all()
        except BaseException as raised:
            error = raised
        finally:
            with self._changed:
                self.error, self.ended = error, True
                self._changed.notify_all()


def _all_ended(streams: list[_Stream[_T]]) -> bool:
    return all(own.ended and not own.item for own in streams)
