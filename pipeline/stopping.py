"""A request to stop a run: its units in flight get a few seconds to finish, and finished units are committed.

The first SIGTERM or SIGINT (Ctrl-C) is such a request, while units are in flight. The handler that was there before
runs when the run has stopped: the caller sees its exception or exit status. A second signal, or one at any
other moment, goes to that handler at once. A run that is killed anywhere continues, too.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from pipeline.errors import StoppedError
from pipeline.stages import announce

_WAIT_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
_RAYS_WAIT = 3.0
"""Seconds between the SIGTERM and the SIGKILL of ``ray job stop``, unless the variable says otherwise."""
_END_SHARE, _END_SECONDS = 1 / 2, 5.0
"""Part of that time, and most of it, that is kept for the end: the last commit, the lease, Ray's own end."""
_RAYS_ALARM = 3
"""Ray's handler of SIGTERM arms an alarm that aborts the process after so many seconds."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_budget(setting: float | Literal["auto"], environment: Mapping[str, str] = os.environ) -> float:
    """Seconds that units in flight get; "auto" fits in the time that Ray gives a job which it stops."""
    if setting != "auto":
        return float(setting)
    try:
        wait = float(environment.get(_WAIT_VARIABLE, _RAYS_WAIT))
    except ValueError:  # Ray itself cannot stop such a job gracefully
        wait = _RAYS_WAIT
    return max(0.0, wait - min(_END_SECONDS, _END_SHARE * wait))


class Stop:
    """Whether the run was asked to stop, and until when its units in flight may go on. Thread-safe.

    Args:
        seconds: from the request on, for units in flight.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._draining = 0
        self._asked: float | None = None
        self._signal: int | None = None
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int] = {}

    @property
    def asked(self) -> bool:
        """Whether the run is to stop: no unit is started any more."""
        return self._asked is not None

    @property
    def seconds_left(self) -> float:
        """How long units in flight may still go on; infinite until the run is asked to stop."""
        return math.inf if self._asked is None else max(0.0, self._asked + self.seconds - time.monotonic())

    @property
    def overdue(self) -> bool:
        """Whether units in flight have had their time, too."""
        return self.seconds_left <= 0

    def ask(self) -> None:
        """Ask the run to stop. Only the first call counts. Safe in a signal handler."""
        if self._asked is None:
            self._asked = time.monotonic()
            text = f"asked to stop: no new units; units done within {self.seconds:g} s are committed"
            # Not here: this may have interrupted a thread that writes to the log itself.
            threading.Thread(target=announce, args=(text,), daemon=True).start()

    @contextmanager
    def draining(self) -> Iterator[None]:
        """A block that looks whether it was asked, and then ends by itself in time.

        Raises:
            StoppedError: at its end, if it was asked.
        """
        self._draining += 1
        try:
            yield
        finally:
            self._draining -= 1
        if self.asked:
            raise StoppedError("the run was asked to stop. Committed rows stay; the same call continues.")

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Context: SIGTERM and SIGINT ask to stop. In other threads than the main one it changes nothing.

        Raises:
            StoppedError: the run stopped at a request, and the handler that was there before neither raised nor exited.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        stopped: StoppedError | None = None
        try:
            for number in _SIGNALS:
                before = signal.getsignal(number)
                if before is not None and before != signal.SIG_IGN:
                    self._handlers[number] = before
            self.listen()
            yield
        except StoppedError as error:
            stopped = error
        finally:
            self._restore()
        if stopped is not None:
            if self._signal is not None:
                try:
                    self._deliver(self._signal, None)
                except BaseException as usual:
                    raise usual from None  # that the run was asked to stop is no part of it
            raise stopped

    def listen(self) -> None:
        """Take the signals of :meth:`on_signals` again: as it starts, Ray puts a handler of its own before ours."""
        if threading.current_thread() is threading.main_thread():
            for number in self._handlers:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if (left := signal.alarm(0)) > _RAYS_ALARM:
            signal.alarm(left)
        if self._draining and not self.asked:
            self._signal = number
            self.ask()
        else:
            self._deliver(number, frame)

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        """Do as the signal would have done without this handler."""
        handler = self._handlers.get(number, signal.SIG_DFL)
        if callable(handler):
            handler(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)
