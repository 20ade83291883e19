"""How many prefetched units may wait for an actor."""

from __future__ import annotations

import threading

__all__ = ["Room"]


class Room:
    """How many prefetched units may wait for an actor. The limit follows the actors."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self) -> bool:
        """Wait for room and take it; False if there will be none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._taken < self._limit)
            self._taken += 1
            return not self._closed

    @property
    def closed(self) -> bool:
        """Whether there will be no room any more."""
        with self._changed:
            return self._closed

    def release(self) -> None:
        """A unit waits no more."""
        with self._changed:
            self._taken -= 1
            self._changed.notify()

    def resize(self, limit: int) -> None:
        """Change the limit."""
        with self._changed:
            self._limit = limit
            self._changed.notify()

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
