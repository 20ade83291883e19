"""Items that arrive together, taken together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

__all__ = ["together"]

_T = TypeVar("_T")


def together(items: Iterator[_T]) -> Iterator[list[_T]]:
    """Lists of what arrived since the last look: one item where the consumer is quick, many where it is slow.

    ``items`` is drawn from in a thread of its own; what it raises is raised here, after what came before it.
    """
    inbox: queue.SimpleQueue[_T | _End] = queue.SimpleQueue()
    stopped = threading.Event()

    def draw() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                inbox.put(item)
                if stopped.is_set():
                    break
        except BaseException as raised:
            error = raised
        inbox.put(_End(error))

    threading.Thread(target=draw, name="together", daemon=True).start()
    try:
        while True:
            held: list[_T] = []
            while not held or not inbox.empty():
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
