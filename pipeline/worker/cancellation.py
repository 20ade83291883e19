"""The runs of units that an actor has begun or will begin, and those of them that are not wanted any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.worker.engine_thread import DroppedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Runs"]


class Runs:
    """Called from several threads.

    Args:
        stop: stops the work whose result a future would be.
    """

    def __init__(self, stop: Callable[[Future[Any]], None]) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._dropped: set[str] = set()
        self._futures: dict[str, Future[Any]] = {}

    @contextmanager
    def run(self, key: str) -> Iterator[None]:
        """The block is the run.

        Raises:
            DroppedError: it was dropped before it began.
        """
        try:
            self._check(key)
            yield
        finally:
            with self._lock:
                self._dropped.discard(key)
                self._futures.pop(key, None)

    def wait(self, key: str, submit: Callable[[], Future[Any]]) -> Any:
        """The result of a part of the run.

        Raises:
            DroppedError: the run was dropped meanwhile, or before.
        """
        with self._lock:
            self._check(key)
            future = self._futures[key] = submit()
        return future.result()

    def drop(self, key: str) -> None:
        """Stop a run, or let it not begin."""
        with self._lock:
            self._dropped.add(key)
            future = self._futures.get(key)
        if future is not None:
            self._stop(future)

    def _check(self, key: str) -> None:
        if key in self._dropped:
            raise DroppedError
