"""Chooses how a run is shown: ``auto``, ``live``, ``lines``, ``none``, or an observer of the caller's own.

rich is imported only where a view needs it.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TextIO, cast, get_args

from pipeline.codec import explain
from pipeline.errors import ConfigError
from pipeline.progress.figures import LINE_SECONDS, Lines
from pipeline.progress.snapshot import Snapshot

PULSE_SECONDS = 0.25
"""Seconds between two snapshots."""
_LOG = logging.getLogger(__name__)


class Observer(Protocol):
    """Receives snapshots of a run, in one thread at a time. Its first exception is logged and ends them."""

    def update(self, snapshot: Snapshot) -> None:
        """The run at this moment. It should return within a few milliseconds: the next observer waits."""
        ...

    def close(self, snapshot: Snapshot) -> None:
        """The last snapshot, once, however the run ended; its stage is ``done`` if it came to its end."""
        ...


class Pulse:
    """Takes snapshots in a thread of its own, every :data:`PULSE_SECONDS`, and shows them to the observers.

    Without observers there is no thread, and no snapshot is taken.

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
            self._show("update")
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, then show the last snapshot and close the observers."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._show("close")

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._show("update")

    def _show(self, method: Literal["update", "close"]) -> None:
        """Show a new snapshot, or the last one: a run does not fail because of its observers."""
        try:
            self._last = self._read()
        except Exception:
            _LOG.warning("the progress could not be read", exc_info=True)
        for observer in list(self._observers):
            try:
                getattr(observer, method)(self._last)
            except Exception:
                _LOG.warning("%s failed; it is shown nothing more", type(observer).__name__, exc_info=True)
                self._observers.remove(observer)


ProgressMode = Literal["auto", "live", "lines", "notebook", "none"]
PROGRESS_MODES: tuple[ProgressMode, ...] = get_args(ProgressMode)


def resolve_mode(mode: ProgressMode, file: TextIO | None = None) -> ProgressMode:
    """Resolve ``auto``, and ``live`` where a view cannot be redrawn; other modes stay.

    ``auto`` is ``notebook`` in a kernel, ``live`` where ``file`` is a terminal that can redraw lines, else ``lines``.

    Raises:
        ConfigError: it is no mode.
    """
    if mode not in PROGRESS_MODES:
        rule = f"one of {', '.join(PROGRESS_MODES)}, or an object with update(snapshot) and close(snapshot)"
        raise ConfigError(explain("progress", mode, rule, 'Use "auto".'))
    if mode not in ("auto", "live"):
        return mode
    from rich.console import Console

    file = file or sys.stderr
    console = Console(file=file)
    if mode == "auto" and console.is_jupyter:
        return "notebook"
    return "live" if console.is_terminal and not console.is_dumb_terminal and file.isatty() else "lines"


def views(
    progress: ProgressMode | Observer, seconds: float = LINE_SECONDS, file: TextIO | None = None
) -> tuple[Observer, ...]:
    """The observers for ``progress``, a mode or an observer; ``file``: None for standard error.

    Raises:
        ConfigError: it is neither; or ``seconds`` is no number above 0.
    """
    if not isinstance(seconds, int | float) or not (0 < seconds < math.inf):
        raise ConfigError(explain("progress_seconds", seconds, "a number of seconds above 0", "Use 10."))
    if all(callable(getattr(progress, name, None)) for name in ("update", "close")):
        return (cast("Observer", progress),)
    file = file or sys.stderr
    mode = resolve_mode(cast("ProgressMode", progress), file)
    if mode in ("live", "notebook"):
        from pipeline.progress.live import LiveView, NotebookView

        return (LiveView(file) if mode == "live" else NotebookView(),)
    return (Lines(file, seconds),) if mode == "lines" else ()
