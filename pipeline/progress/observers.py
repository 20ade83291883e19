"""Who looks at a run: the protocol of observers, and the thread that shows them its snapshots."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from pipeline.progress.snapshot import Snapshot

__all__ = ["PULSE_SECONDS", "Observer", "Pulse"]

PULSE_SECONDS = 0.25
"""Seconds between two snapshots."""
_LOG = logging.getLogger(__name__)


class Observer(Protocol):
    """Is shown snapshots of a run, in one thread at a time. What it raises is logged, and it is not asked again."""

    def update(self, snapshot: Snapshot) -> None:
        """The run at this moment. It should return within a few milliseconds: the next observer waits."""
        ...

    def close(self, snapshot: Snapshot) -> None:
        """The last snapshot, once, however the run ended; its stage is ``done`` if it came to its end."""
        ...


class Pulse:
    """Takes snapshots in a thread of its own, every :data:`PULSE_SECONDS`, and shows them to the observers.

    Without observers there is no thread, and no snapshot is taken.

    Args:
        read: takes a snapshot.
        observers: who looks.
        seconds: between two snapshots.
    """

    def __init__(
        self, read: Callable[[], Snapshot], observers: Sequence[Observer], seconds: float = PULSE_SECONDS
    ) -> None:
        self._read = read
        self._observers = list(observers)
        self._seconds = seconds
        self._last = Snapshot()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Show the first snapshot now, in this thread, and the others from the thread."""
        if self._observers:
            self._show()
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, then show the last snapshot and close the observers."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if not self._observers:
            return
        last = self._snapshot()
        for observer in list(self._observers):
            self._guarded(observer, observer.close, last)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._show()

    def _show(self) -> None:
        snapshot = self._snapshot()
        for observer in list(self._observers):
            self._guarded(observer, observer.update, snapshot)

    def _snapshot(self) -> Snapshot:
        """A new one; the last one where that fails: a run does not fail for those who look at it."""
        try:
            self._last = self._read()
        except Exception:
            _LOG.warning("the progress could not be read", exc_info=True)
        return self._last

    def _guarded(self, observer: Observer, call: Callable[[Snapshot], None], snapshot: Snapshot) -> None:
        try:
            call(snapshot)
        except Exception:
            _LOG.warning("%s failed; it is shown nothing more", type(observer).__name__, exc_info=True)
            if observer in self._observers:
                self._observers.remove(observer)
