"""Items that arrive together, taken together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

__all__ = ["together"]

_T = TypeVar("_T")
_MOST = 4096
"""Items that wait at most: a consumer that is slower for long slows the source, and memory stays bounded."""
_LOOK_SECONDS = 1.0


def together(items: Iterator[_T]) -> Iterator[list[_T]]:
    """Lists of what arrived since the last look: one item where the consumer is quick, many where it is slow.

    ``items`` is drawn from in a thread of its own; what it raises is raised here, after what came before it.
    """
    inbox: queue.Queue[_T | _End] = queue.Queue(_MOST)
    stopped = threading.Event()

    def put(item: _T | _End) -> None:
        while not stopped.is_set():
            try:
                inbox.put(item, timeout=_LOOK_SECONDS)
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

    threading.Thread(target=draw, name="together", daemon=True).start()
    try:
        while True:
            held: list[_T] = []
            while not held or (not inbox.empty() and len(held) < _MOST):
                item = inbox.get()
                if isinstance(item, _End):
                    if held:
                        yield held
                    if item.error is not None:
                        raise item.error
                    return
                held.append(item)
            yield held
    finally:
        stopped.set()


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error
