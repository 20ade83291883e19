"""The queue of units of a chain's later stages: they come while the run goes on, as what they read is committed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from pipeline.types import Unit

__all__ = ["LaterUnits"]

_MOST = 32
"""Units of one take: what one task reads."""


class LaterUnits:
    """Units that are ready to be read. Thread-safe.

    Args:
        ready: units that are ready from the beginning; drawn as they are taken.
    """

    def __init__(self, ready: Iterator[Unit]) -> None:
        self._ready: Iterator[Unit] | None = ready
        self._drawn: deque[Unit] = deque()
        self._arrived: deque[Unit] = deque()
        self._ended = False
        self._drawing = threading.Lock()
        self._changed = threading.Condition()

    def put(self, unit: Unit) -> None:
        """A unit whose rows have just been committed."""
        with self._changed:
            self._arrived.append(unit)
            self._changed.notify()

    def end(self) -> None:
        """No more units will arrive, or nobody wants them any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, seconds: float | None = 0.0) -> tuple[Unit, ...]:
        """Some units of one stage, those that arrived first; waits so many seconds (None: for ever) for one.

        Empty if none came in time, or none will come.
        """
        if units := self._of_one_stage(self._arrived) or self._draw():
            return units
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._ended, seconds)
        return self._of_one_stage(self._arrived)

    @property
    def exhausted(self) -> bool:
        """Whether all units have been taken, and no more will come."""
        with self._drawing, self._changed:
            return self._ended and not self._arrived and not self._drawn and self._ready is None

    def _of_one_stage(self, waiting: deque[Unit]) -> tuple[Unit, ...]:
        units: list[Unit] = []
        with self._changed:
            while waiting and len(units) < _MOST and waiting[0].stage == (units or waiting)[0].stage:
                units.append(waiting.popleft())
        return tuple(units)

    def _draw(self) -> tuple[Unit, ...]:
        with self._drawing:
            while self._ready is not None and len(self._drawn) < _MOST:
                unit = next(self._ready, None)
                if unit is None:
                    self._ready = None
                else:
                    self._drawn.append(unit)
            return self._of_one_stage(self._drawn)
