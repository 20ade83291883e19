"""Cancellation: lets the driver drop an actor's execution of a unit, before it begins or while it runs."""

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
    """The executions ("runs") of units in an actor. Thread-safe.

    Args:
        stop: cancels the work of a future; the future then raises :class:`DroppedError`.
    """

    def __init__(self, stop: Callable[[Future[Any]], None]) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._dropped: set[str] = set()
        self._futures: dict[str, Future[Any]] = {}

    @contextmanager
    def run(self, key: str) -> Iterator[None]:
        """Register the run ``key`` for the duration of the block.

        Raises:
            DroppedError: the run was dropped before it began.
        """
        try:
            self._check(key)
            yield
        finally:
            with self._lock:
                self._dropped.discard(key)
                self._futures.pop(key, None)

    def wait(self, key: str, submit: Callable[[], Future[Any]]) -> Any:
        """Submit a part of the run and wait for its result.

        Raises:
            DroppedError: the run was dropped, before or meanwhile.
        """
        with self._lock:
            self._check(key)
            future = self._futures[key] = submit()
        return future.result()

    def drop(self, key: str) -> None:
        """Cancel a run, or keep it from beginning."""
        with self._lock:
            self._dropped.add(key)
            future = self._futures.get(key)
        if future is not None:
            self._stop(future)

    def _check(self, key: str) -> None:
        if key in self._dropped:
            raise DroppedError
